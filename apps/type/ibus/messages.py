"""Values as IBus sends them over D-Bus: serialised objects, each a structure with its type's name.

Source: `ibusserializable.c`, `ibustext.c`, `ibusenginedesc.c` and `ibuscomponent.c` of ibus 1.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dbus_fast import Message, Variant

BUS_NAME = "org.edgedec.Type"
ENGINE_NAME = "edgedec"
ENGINE, FACTORY = "org.freedesktop.IBus.Engine", "org.freedesktop.IBus.Factory"
IBUS, IBUS_PATH = "org.freedesktop.IBus", "/org/freedesktop/IBus"
ENGINES = "/org/edgedec/Type"
"""Beginning of the paths of our engines."""

BUS, BUS_PATH = "org.freedesktop.DBus", "/org/freedesktop/DBus"
AT_ONCE, IS_OURS = 4, 1
"""Of a request for a name: no waiting for it; and the answer that it is granted."""

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


def call(member: str, signature: str = "", *body: Any) -> Message:
    """Returns a call of IBus' daemon."""
    return Message(
        destination=IBUS,
        path=IBUS_PATH,
        interface=IBUS,
        member=member,
        signature=signature,
        body=list(body),
    )


def answer(message: Message, is_ours: bool = False) -> Message:
    """Returns what an engine without lists or properties says to a call of IBus'.

    is_ours: a key is not the application's.
    """
    if message.interface == FACTORY and message.member == "CreateEngine":
        # The daemon numbers its messages, so no other process of ours takes this path.
        return Message.new_method_return(message, "o", [f"{ENGINES}/{message.serial}"])
    if message.member == "ProcessKeyEvent":
        return Message.new_method_return(message, "b", [is_ours])
    if message.interface == PROPERTIES and message.member == "Get":
        return Message.new_method_return(message, "v", [Variant("b", True)])  # we want all there is
    if message.interface == PROPERTIES and message.member == "GetAll":
        return Message.new_method_return(message, "a{sv}", [{}])
    return Message.new_method_return(message)


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
