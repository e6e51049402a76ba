"""Clicks anywhere on the screen, from the X server itself: busy applications report them late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from Xlib.display import Display
from Xlib.error import ConnectionClosedError
from Xlib.ext import ge, xinput

_VERSION = 2, 2
"""Of XInput; before 2.1 grabs hid clicks from others."""


class Clicks:
    """Presses of the mouse's buttons, its wheel among them."""

    def __init__(self, on_click: Callable[[], None]) -> None:
        self._on_click, self._display = on_click, Display()

    def follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Calls ``on_click`` in an event loop from now on; never if the X server cannot tell."""
        if self._select():
            loop.add_reader(self._display.fileno(), self._read, loop)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            events = [self._display.next_event() for _ in range(self._display.pending_events())]
        except (ConnectionClosedError, OSError):  # the session ends
            loop.remove_reader(self._display.fileno())
            return
        if any(event.type == ge.GenericEventCode for event in events):
            self._on_click()

    def _select(self) -> bool:
        """Asks for presses of all devices; returns whether the X server can."""
        if not self._display.has_extension(xinput.extname):
            return False
        opcode = self._display.display.get_extension_major(xinput.extname)
        major, minor = _VERSION
        xinput.XIQueryVersion(
            display=self._display.display, opcode=opcode, major_version=major, minor_version=minor
        )
        root = self._display.screen().root
        root.xinput_select_events([(xinput.AllMasterDevices, xinput.RawButtonPressMask)])
        self._display.sync()
        return True
