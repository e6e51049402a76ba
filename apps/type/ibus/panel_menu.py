"""The menu of IBus' panel, and of desktops that show it: properties of the engine."""

from __future__ import annotations

from collections.abc import Sequence

from dbus_fast import Variant

from edgedec.apps.type.ibus import messages
from edgedec.apps.type.menu import MenuItem


def properties_of(items: Sequence[MenuItem]) -> Variant:
    """Returns a menu as IBus sends it to panels."""
    return messages.properties([_property(item, messages.TOGGLE) for item in items])


def _property(item: MenuItem, switch: int) -> Variant:
    """``switch``: kind of an item that can be checked."""
    if item.children:
        children = [_property(child, messages.RADIO) for child in item.children]
        return messages.property(item.key, messages.MENU, item.label, False, children)
    kind = messages.NORMAL if item.is_checked is None else switch
    return messages.property(item.key, kind, item.label, bool(item.is_checked))
