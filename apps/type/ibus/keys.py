"""Keys as IBus reports them, and as `Suggestions` knows them."""

from __future__ import annotations

from edgedec.apps.type.ibus.messages import ALT, CONTROL, MODIFIERS, SHIFT
from edgedec.apps.type.text_place import Key

_NAMES = {
    0xFF08: "BackSpace", 0xFF09: "Tab", 0xFF0D: "Return", 0xFF8D: "Return", 0xFF1B: "Escape",
    0xFF51: "Left", 0xFF53: "Right",
}  # fmt: skip
"""Keysyms that mean something to us. Source: X11's keysymdef.h."""

_KEYPAD_DIGITS = range(0xFFB0, 0xFFBA)
_KEYPAD = {
    0xFF80: " ",
    0xFFAA: "*",
    0xFFAB: "+",
    0xFFAC: ",",
    0xFFAD: "-",
    0xFFAE: ".",
    0xFFAF: "/",
}
_RIGHT_BRACKET = 27
"""Linux' code of the key that writes ] on a US keyboard; other layouts have it elsewhere."""


def is_modifier(symbol: int) -> bool:
    """Says whether a keysym is a key such as Shift, or switches between layouts and levels."""
    return 0xFFE1 <= symbol <= 0xFFEE or 0xFE01 <= symbol <= 0xFE13 or symbol in (0xFF7E, 0xFF7F)


def key_of(symbol: int, code: int, state: int) -> Key:
    """Returns the key. Args: keysym, Linux' code of the key, and bits of what is held down."""
    is_control, is_alt = bool(state & CONTROL), bool(state & ALT)
    if is_alt and code == _RIGHT_BRACKET:
        return Key("]", is_control=is_control, is_alt=True)
    name = _NAMES.get(symbol, "")
    if name and state & SHIFT and name not in ("BackSpace", "Return"):
        name = ""  # moves the focus backwards, or selects
    text = "" if state & MODIFIERS or name else _text(symbol)
    return Key(name, text, is_control, is_alt)


def _text(symbol: int) -> str:
    """Returns what a keysym writes; empty if nothing."""
    if 0x20 <= symbol <= 0x7E or 0xA0 <= symbol <= 0xFF:
        return chr(symbol)
    if 0x01000100 <= symbol <= 0x0110FFFF:
        return chr(symbol - 0x01000000)
    if symbol in _KEYPAD_DIGITS:
        return str(symbol - _KEYPAD_DIGITS[0])
    return _KEYPAD.get(symbol, "")
