"""Dead keys and the Compose key, by the user's own tables.

IBus leaves both to the engine, and GTK 3 and Qt lose dead keys that an engine hands back.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

_NOTHING, _COMPOSING, _COMPOSED = 0, 1, 2
_SIZE = 64


class Compose:
    """What is being composed, by libxkbcommon. Without that library nothing is."""

    def __init__(self) -> None:
        self._library: ctypes.CDLL | None = None
        self._state = None
        if (opened := _table()) is not None:
            self._library, table = opened
            self._state = self._library.xkb_compose_state_new(table, 0)

    def feed(self, symbol: int) -> str | None:
        """Takes a keysym.

        Returns:
            The text that was composed, empty while it is not whole or if the keys make none; None:
            the key is no part of it.
        """
        library = self._library
        if library is None or not self._state:
            return None
        library.xkb_compose_state_feed(self._state, symbol)
        status = library.xkb_compose_state_get_status(self._state)
        if status == _NOTHING:
            return None
        text = ctypes.create_string_buffer(_SIZE)
        if status == _COMPOSED:
            library.xkb_compose_state_get_utf8(self._state, text, _SIZE)
        if status != _COMPOSING:
            self.reset()
        return text.value.decode()

    def reset(self) -> None:
        """Forgets what is being composed."""
        if self._library is not None and self._state:
            self._library.xkb_compose_state_reset(self._state)


@cache
def _table() -> tuple[ctypes.CDLL, int] | None:
    """Returns the library, and the table of the user's language or else of English."""
    try:
        library = ctypes.CDLL("libxkbcommon.so.0")
    except OSError:
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int
    declared = {
        "xkb_context_new": (pointer, [number]),
        "xkb_compose_table_new_from_locale": (pointer, [pointer, ctypes.c_char_p, number]),
        "xkb_compose_state_new": (pointer, [pointer, number]),
        "xkb_compose_state_feed": (number, [pointer, ctypes.c_uint32]),
        "xkb_compose_state_get_status": (number, [pointer]),
        "xkb_compose_state_reset": (None, [pointer]),
        "xkb_compose_state_get_utf8": (number, [pointer, ctypes.c_char_p, ctypes.c_size_t]),
    }
    for name, (result, arguments) in declared.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    context = library.xkb_context_new(0)
    names = (os.environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    locale_name = next((name for name in names if name), "C")
    for locale in (locale_name, "en_US.UTF-8"):
        if table := library.xkb_compose_table_new_from_locale(context, locale.encode(), 0):
            return library, table
    return None
