"""Real keys into real text fields of applications: `make test-desktop`."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from .conftest import TOOLKITS, Desktop, Window, wait_for

pytestmark = pytest.mark.toolkits

TEXT = "The capital of France is Par"


@pytest.fixture(scope="module", params=[name for name in TOOLKITS if name != "vte"])
def window(request: pytest.FixtureRequest, suggesting: Desktop) -> Iterator[Window]:
    found = Window(suggesting, request.param)
    yield found
    found.close()


@pytest.fixture
def typed(window: Window) -> Window:
    """A window with a suggestion behind `TEXT`."""
    window.clear()
    window.desktop.type(TEXT)
    wait_for(window.desktop.ghost, "a suggestion")
    time.sleep(0.2)
    return window


def test_tab_takes_what_is_shown(typed: Window) -> None:
    ghost = typed.desktop.ghost()
    assert typed.text() == TEXT
    typed.desktop.key("Tab")
    wait_for(lambda: typed.text() == TEXT + ghost, "the text")


def test_control_right_takes_a_word(typed: Window) -> None:
    first = typed.desktop.ghost().split(" ")[0]
    typed.desktop.key("ctrl+Right")
    wait_for(lambda: typed.text() == TEXT + first, "the word")
