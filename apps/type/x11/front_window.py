"""The window in front, and the program that it belongs to."""

from __future__ import annotations

from Xlib import X
from Xlib.display import Display
from Xlib.error import XError
from Xlib.xobject.drawable import Window

_PRIVATE = ("(incognito)", "inprivate", "private browsing")
"""In titles of browsers' private windows, if the browser speaks English."""


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

    def find(self) -> tuple[str, bool]:
        """Returns the program's name in lower case, and whether the window is a private one."""
        try:
            window = front_window(self._display)
            if window is None:
                return "", False
            name = window.get_wm_class()
            title_atom = self._display.intern_atom("_NET_WM_NAME")
            title = window.get_full_property(title_atom, X.AnyPropertyType)
            text = title.value.decode(errors="replace").lower() if title is not None else ""
        except XError:
            return "", False
        return (name[1] if name else "").lower(), any(word in text for word in _PRIVATE)
