"""Real keys into real text fields of applications: `make test-desktop`.

Each test says what must be in a field. What the model suggests is read from the ghost's window.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from .conftest import BROWSERS, TOOLKITS, Desktop, Page, Window, wait_for

pytestmark = pytest.mark.toolkits

TEXT = "The capital of France is Par"
NO_LETTER = "#"  # agrees with no suggestion


@pytest.fixture(scope="module", params=[*(name for name in TOOLKITS if name != "vte"), *BROWSERS])
def window(request: pytest.FixtureRequest, suggesting: Desktop) -> Iterator[Window]:
    make = Page if request.param in BROWSERS else Window
    found = make(suggesting, request.param)
    yield found
    found.close()


@pytest.fixture
def typed(window: Window) -> Window:
    """A window with a suggestion behind `TEXT`."""
    window.clear()
    window.desktop.type(TEXT)
    wait_for(window.desktop.ghost, "a suggestion")
    becomes(window, TEXT)  # and the suggestion does not grow any more
    return window


def becomes(window: Window, text: str, field: str = "view") -> None:
    with suppress(AssertionError):
        wait_for(lambda: window.text(field) == text, f"{text!r} in the {field}")
    window.desktop.settle()
    assert window.text(field) == text


def is_hidden(window: Window) -> None:
    wait_for(lambda: not window.desktop.ghost(), "an end of the suggestion")


def test_tab_takes_what_is_shown(typed: Window) -> None:
    ghost = typed.desktop.ghost()
    typed.desktop.key("Tab")
    becomes(typed, TEXT + ghost)


def test_control_right_takes_a_word(typed: Window) -> None:
    first = typed.desktop.ghost().split(" ")[0]
    typed.desktop.key("ctrl+Right")
    becomes(typed, TEXT + first)


def test_escape_dismisses(typed: Window) -> None:
    typed.desktop.key("Escape")
    is_hidden(typed)
    becomes(typed, TEXT)


def test_alternatives(typed: Window) -> None:
    first = typed.desktop.ghost()
    typed.desktop.key("alt+]")
    other = wait_for(lambda: typed.desktop.ghost() not in ("", first), "another")
    typed.desktop.settle()
    other = typed.desktop.ghost()
    typed.desktop.key("Tab")
    becomes(typed, TEXT + other)


def test_keys_that_agree_shorten_it(typed: Window) -> None:
    ghost = typed.desktop.ghost()
    typed.desktop.type(ghost[0])
    becomes(typed, TEXT + ghost[0])
    assert typed.desktop.ghost() != ghost


def test_keys_that_disagree_end_it(typed: Window) -> None:
    typed.desktop.key(NO_LETTER)
    becomes(typed, TEXT + NO_LETTER)
    is_hidden(typed)


def test_backspace_is_the_applications(typed: Window) -> None:
    typed.desktop.key("BackSpace")
    becomes(typed, TEXT[:-1])
    is_hidden(typed)


def test_undo_takes_it_back(typed: Window) -> None:
    if typed.toolkit == "gtk3":
        pytest.skip("text views of GTK 3 have no undo")
    ghost = typed.desktop.ghost()
    typed.desktop.key("Tab")
    becomes(typed, TEXT + ghost)
    typed.desktop.key("Escape")
    typed.desktop.key("ctrl+z")
    wait_for(lambda: typed.text() != TEXT + ghost, "an undo")
    typed.desktop.settle()
    assert TEXT.startswith(typed.text())


def test_a_selection_is_replaced(typed: Window) -> None:
    typed.desktop.key("ctrl+a")
    is_hidden(typed)
    typed.desktop.type("ok")
    becomes(typed, "ok")


def test_shortcuts_are_the_applications(typed: Window) -> None:
    for key in ("ctrl+a", "ctrl+c", "End", "ctrl+v"):
        typed.desktop.key(key)
        is_hidden(typed)
    becomes(typed, TEXT + TEXT)


def test_a_part_that_is_selected_is_replaced(typed: Window) -> None:
    for key in ("shift+Left", "shift+Left", "#"):
        typed.desktop.key(key)
    becomes(typed, TEXT[:-2] + "#")
    is_hidden(typed)


def test_a_click_inserts_nothing(typed: Window) -> None:
    x, y = typed.place()
    typed.desktop.click(x + 30, y + 30)
    is_hidden(typed)
    becomes(typed, TEXT)


def test_another_field_inserts_nothing(typed: Window) -> None:
    typed.desktop.key("Escape")
    typed.desktop.key("Home")
    typed.desktop.key("End")
    typed.desktop.type("is")
    typed.desktop.key("shift+Tab")
    is_hidden(typed)
    typed.desktop.settle()
    typed.turn_to("view")
    assert typed.text().strip() == TEXT + "is"


@pytest.mark.parametrize("field", ["password", "number", "address"])
def test_nothing_is_suggested_in(window: Window, field: str) -> None:
    if field == "address" and not window.toolkit.startswith("gtk"):
        pytest.skip(f"{window.toolkit} does not tell IBus that a field is for addresses")
    window.clear()
    window.turn_to(field)
    text = TEXT if field != "number" else "12345"
    window.desktop.type(text)
    becomes(window, text, field)
    assert window.desktop.ghost() == ""
    window.desktop.key("Tab")  # which is the application's
    becomes(window, text, field)
    window.turn_to(field)
    window.clear(field)
    window.turn_to("view")


@pytest.mark.parametrize("part", ["guard", "answering", "model"])
def test_no_key_is_lost_when_it_ends(typed: Window, part: str) -> None:
    """A process of ours is killed while something is on offer and keys are on their way."""
    desktop = typed.desktop
    if part == "answering":
        desktop.kill_type(part, signal.SIGSTOP)  # so that it has keys when it ends
    desktop.type(" ok, then", 0.0)
    desktop.kill_type(part)
    try:
        becomes(typed, TEXT + " ok, then")
        is_hidden(typed)
    finally:
        desktop.start_type_again()


def test_it_goes_on_in_the_same_field(typed: Window) -> None:
    typed.desktop.kill_type("answering")
    typed.desktop.start_type_again()
    typed.desktop.type("is. " + TEXT)
    wait_for(typed.desktop.ghost, "a suggestion")


def test_a_password_stays_one(window: Window) -> None:
    window.turn_to("password")
    window.desktop.kill_type("answering")
    window.desktop.start_type_again()
    window.desktop.type(TEXT)
    becomes(window, TEXT, "password")
    assert window.desktop.ghost() == ""
    window.clear("password")
    window.turn_to("view")


def test_terminals_are_left_alone(suggesting: Desktop) -> None:
    terminal = Window(suggesting, "vte")
    try:
        wait_for(lambda: "$" in terminal.text(), "the prompt")
        line = "$ echo " + TEXT
        suggesting.type("echo " + TEXT)
        becomes(terminal, line)
        assert suggesting.ghost() == ""
        for key in ("Tab", "ctrl+Right"):
            suggesting.key(key)
        becomes(terminal, line)
    finally:
        terminal.close()


LAYOUTS = [
    ("de", "yuml qz;", "zuml qyö"),
    ("ru", "ghbdtn vbh", "привет мир"),
    ("us -variant intl", "caf'e \"uber a~n", "café über añ"),
    ("us -option compose:menu", "caf MENU'e", "caf é"),
    ("us", "plain", "plain"),
]
"""setxkbmap's options, keys by their places on a US keyboard, and what they write."""


@pytest.mark.parametrize(("layout", "keys", "text"), LAYOUTS)
def test_layouts(window: Window, layout: str, keys: str, text: str) -> None:
    window.clear()
    window.desktop.output("setxkbmap", "-option", "", *layout.split())
    window.desktop.settle()
    try:
        for key in keys.replace("MENU", "\0"):
            window.desktop.key("menu" if key == "\0" else key)
            window.desktop.settle()  # Qt takes what is composed behind keys that wait for it
        becomes(window, text)
    finally:
        window.desktop.output("setxkbmap", "-option", "", "us")
        window.desktop.settle()


def random_keys(seed: int, n: int) -> list[str]:
    """Returns keys that take no suggestion: words, movements, corrections, selections."""
    rng, found = random.Random(seed), list[str]()
    words = ("the ", "capital of ", "France is ", "I am very ", "Thank you for ", "people ")
    other = ("BackSpace", "Left", "Right", "Home", "End", "\n", "Delete", "Escape", "ctrl+a", "X")
    while len(found) < n:
        found += rng.choice(words) if rng.random() < 0.6 else [rng.choice(other)]
    return found[:n]


@pytest.mark.parametrize("seed", range(2))
def test_text_is_the_same_without_us(window: Window, seed: int) -> None:
    desktop, texts = window.desktop, []
    for is_suggesting in (True, False):
        window.clear()
        if not is_suggesting:
            desktop.end_type()
            desktop.settle()
        try:
            for key in random_keys(seed, 150):
                desktop.key(key)
            desktop.key("ctrl+End")
            desktop.type("~")  # all keys before it are in the text once it is
            wait_for(lambda: window.text().endswith("~"), "the last key")
            texts.append(window.text())
        finally:
            if not is_suggesting:
                desktop.start_type_again()
    assert texts[0] == texts[1]
