"""The window in front, and the program that it belongs to."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from Xlib import X
from Xlib.display import Display
from Xlib.error import XError
from Xlib.xobject.drawable import Window

from edgedec.apps.type.text_place import Application
from edgedec.system.processes import environment

_PRIVATE = ("(incognito)", "inprivate", "private browsing")
"""In titles of browsers' private windows, if the browser speaks English."""

AT_ONCE = 1 << 14
"""Units: 4 bytes, of a property. Between two reads it may become shorter, which is an error."""


def front_window(display: Display) -> Window | None:
    """Returns the window that the window manager has in front; None if nobody knows."""
    active = display.intern_atom("_NET_ACTIVE_WINDOW")
    property = display.screen().root.get_full_property(active, X.AnyPropertyType)
    if property is None or not property.value or not property.value[0]:
        return None
    return display.create_resource_object("window", property.value[0])


class FrontProgram:
    """Asks the X server for the program in front."""

    def __init__(self) -> None:
        self._display = Display()

    def find(self) -> Application:
        """Returns what is known of it."""
        try:
            window = front_window(self._display)
            if window is None:
                return Application()
            name = window.get_wm_class()
            title = self._property(window, "_NET_WM_NAME")
            pid = self._property(window, "_NET_WM_PID")
        except XError:
            return Application()
        text = title.decode(errors="replace").lower() if title else ""
        is_private = any(word in text for word in _PRIVATE)
        return Application(
            (name[1] if name else "").lower(), is_private, _qt_scale(pid[0]) if pid else 1.0
        )

    def _property(self, window: Window, name: str) -> Any:
        atom = self._display.intern_atom(name)
        reply = window.get_full_property(atom, X.AnyPropertyType, AT_ONCE)
        return None if reply is None else reply.value


def _qt_scale(pid: int) -> float:
    """Returns QT_SCALE_FACTOR in a program's environment; 1 if there is none, or it is hidden."""
    with suppress(ValueError):
        return max(float(environment(pid).get("QT_SCALE_FACTOR", "1")), 1.0)
    return 1.0
