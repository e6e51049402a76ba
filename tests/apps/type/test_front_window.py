"""The program in front: `make test-desktop`."""

from __future__ import annotations

import threading

import pytest

from .conftest import Desktop, wait_for

pytestmark = pytest.mark.toolkits
TITLES = (b"inbox (private browsing) " + b"x" * 600, b"(private browsing)")


def test_a_title_that_changes_while_it_is_read(
    desktop: Desktop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from Xlib.display import Display

    from edgedec.apps.type.x11.front_window import FrontProgram

    monkeypatch.setenv("DISPLAY", desktop.name)
    display, is_over = Display(), threading.Event()
    window = display.screen().root.create_window(0, 0, 100, 100, 0, 0)
    title, utf8 = display.intern_atom("_NET_WM_NAME"), display.intern_atom("UTF8_STRING")
    window.change_property(title, utf8, 8, TITLES[0])
    window.map()
    display.sync()
    wait_for(lambda: desktop.front() == window.id, "the window in front")

    def change() -> None:
        while not is_over.is_set():
            for text in TITLES:
                window.change_property(title, utf8, 8, text)
                display.sync()

    changing = threading.Thread(target=change)
    changing.start()
    try:
        program = FrontProgram()
        assert all(program.find().is_private for _ in range(200))
    finally:
        is_over.set()
        changing.join()
        display.close()
