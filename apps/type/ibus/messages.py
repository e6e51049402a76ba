"""Values as IBus sends them over D-Bus: serialised objects, each a structure with its type's name.

Source: `ibusserializable.c`, `ibustext.c`, `ibusenginedesc.c` and `ibuscomponent.c` of ibus 1.5.
"""

from __future__ import annotations

from collections.abc import Sequence

from dbus_fast import Variant

BUS_NAME = "org.edgedec.Type"
ENGINE_NAME = "edgedec"
ENGINE, FACTORY = "org.freedesktop.IBus.Engine", "org.freedesktop.IBus.Factory"
IBUS, IBUS_PATH = "org.freedesktop.IBus", "/org/freedesktop/IBus"
PROPERTIES = "org.freedesktop.DBus.Properties"

RELEASE, SHIFT, LOCK, CONTROL, ALT, SUPER = 1 << 30, 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 6
MODIFIERS = CONTROL | ALT | SUPER | 1 << 26 | 1 << 27 | 1 << 28
"""Bits of a key's state; those of `MODIFIERS` make it a command to the application."""

HAS_SURROUNDING_TEXT = 1 << 5
"""Of a client's capabilities."""


def text(content: str) -> Variant:
    """Returns an IBusText without attributes."""
    attributes = Variant("(sa{sv}av)", ["IBusAttrList", {}, []])
    return Variant("(sa{sv}sv)", ["IBusText", {}, content, attributes])


def component(version: str) -> Variant:
    """Returns the IBusComponent that has our one engine, which keeps the keyboard's layout."""
    described = (ENGINE_NAME, "edgedec", "Suggestions from a language model", "other", "Apache-2.0")
    shown = ("edgedec", "", "default", 0, "", "✎", "", "", "", "", "", "")
    engine = Variant("(sa{sv}ssssssssussssssss)", ["IBusEngineDesc", {}, *described, *shown])
    about = (BUS_NAME, "", version, "Apache-2.0", "edgedec", "", "", "")
    return Variant("(sa{sv}ssssssssavav)", ["IBusComponent", {}, *about, [], [engine]])


NORMAL, TOGGLE, RADIO, MENU = range(4)
"""Kinds of properties, which are the lines of a panel's menu."""


def property(
    key: str, kind: int, label: str, is_checked: bool, children: Sequence[Variant] = ()
) -> Variant:
    """Returns an IBusProperty, whose children are other ones."""
    shown = (key, kind, text(label), "", text(""), True, True, int(is_checked))
    below = (properties(children), text(""))
    return Variant("(sa{sv}suvsvbbuvv)", ["IBusProperty", {}, *shown, *below])


def properties(items: Sequence[Variant]) -> Variant:
    """Returns an IBusPropList."""
    return Variant("(sa{sv}av)", ["IBusPropList", {}, list(items)])
