"""Our side of IBus: registers the engine, makes an `Engine` for each of IBus' and calls it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from typing import Any

from dbus_fast import DBusError, Message, MessageType, Variant
from dbus_fast.aio import MessageBus

from edgedec.apps.type.ibus import messages
from edgedec.apps.type.ibus.engine import Engine
from edgedec.models.errors import ConfigError

_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_EVENTS = {
    "ProcessKeyEvent", "SetSurroundingText", "SetCursorLocation", "FocusIn", "FocusInId",
    "FocusOut", "FocusOutId", "Reset", "Enable", "Disable", "PropertyActivate",
}  # fmt: skip
"""Of IBus' calls; those left out are about lists that we do not show."""

_NO_IBUS = (
    "IBus does not run in this session: start it with `ibus-daemon --daemonize --xim` and log in "
    "again if applications do not use it"
)

MakeEngine = Callable[[MessageBus, str], Engine]


def find_address() -> str:
    """Returns where IBus' daemon of this session listens.

    Raises:
        ConfigError: There is no IBus, or it does not run.
    """
    try:
        done = subprocess.run(["ibus", "address"], capture_output=True, text=True, timeout=10)
    except FileNotFoundError:
        raise ConfigError("there is no program ibus: install the package ibus") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(_NO_IBUS) from None
    address = done.stdout.strip()
    if not address or address == "(null)":
        raise ConfigError(_NO_IBUS)
    return address


class Service:
    """A connection to IBus with our engine.

    Args:
        make_engine: Makes an `Engine` of a bus and a path.
    """

    def __init__(self, make_engine: MakeEngine) -> None:
        self._make_engine = make_engine
        self._engines: dict[str, Engine] = {}
        self._bus: MessageBus | None = None
        self._before = ""  # the engine that was chosen before ours

    async def connect(self, version: str) -> None:
        """Registers the engine and chooses it.

        Raises:
            ConfigError: IBus does not run, refuses, or has our engine from another process.
        """
        try:
            self._bus = await MessageBus(bus_address=find_address()).connect()
        except (OSError, DBusError, EOFError) as error:
            raise ConfigError(f"{_NO_IBUS} ({error})") from None
        self._bus.add_message_handler(self._handle)
        name = await self._bus.request_name(messages.BUS_NAME)
        if name.value != 1:
            raise ConfigError("edgedec type runs already in this session: end that one first")
        await self._call("RegisterComponent", "v", messages.component(version))
        self._before = await self._chosen()
        await self._call("SetGlobalEngine", "s", messages.ENGINE_NAME)

    def clicked(self) -> None:
        """Somebody clicked anywhere."""
        for engine in self._engines.values():
            engine.clicked()

    async def wait(self) -> None:
        """Returns when IBus' daemon has ended."""
        assert self._bus is not None
        await self._bus.wait_for_disconnect()

    async def close(self) -> None:
        """Chooses the engine that was chosen before, and lets IBus go."""
        if self._bus is None or not self._bus.connected:
            return
        if self._before and await self._chosen() == messages.ENGINE_NAME:
            await self._call("SetGlobalEngine", "s", self._before)
        self._bus.disconnect()

    async def _chosen(self) -> str:
        """Returns the name of the engine that all windows have; empty if there is none."""
        try:
            description = await self._call("GetGlobalEngine", "")
        except ConfigError:
            return ""
        name: str = description[0].value[2]
        return name

    async def _call(self, member: str, signature: str, *body: Any) -> list[Any]:
        assert self._bus is not None
        reply = await self._bus.call(
            Message(
                destination=messages.IBUS,
                path=messages.IBUS_PATH,
                interface=messages.IBUS,
                member=member,
                signature=signature,
                body=list(body),
            )
        )
        if reply is None or reply.message_type is MessageType.ERROR:
            reason = "no reply" if reply is None else " ".join(map(str, reply.body))
            raise ConfigError(f"IBus refuses {member}: {reason}")
        return list(reply.body)

    def _handle(self, message: Message) -> Message | None:
        """Answers a call of IBus'."""
        if message.message_type is not MessageType.METHOD_CALL:
            return None
        if message.interface == messages.FACTORY and message.member == "CreateEngine":
            path = f"/org/edgedec/Type/{len(self._engines) + 1}"
            assert self._bus is not None
            self._engines[path] = self._make_engine(self._bus, path)
            return Message.new_method_return(message, "o", [path])
        engine = self._engines.get(message.path or "")
        if engine is None:
            return None
        if message.interface == messages.PROPERTIES:
            return _properties(engine, message)
        if message.member in _EVENTS:
            name = _CAPITAL.sub("_", message.member).lower()
            answer = getattr(engine, name)(*message.body)
            if message.member == "ProcessKeyEvent":
                return Message.new_method_return(message, "b", [answer])
        return Message.new_method_return(message)


def _properties(engine: Engine, message: Message) -> Message:
    """Answers a question about properties: we want to know clients' names, and their texts."""
    if message.member == "Set" and message.body[1] == "ContentType":
        engine.set_content_type(*message.body[2].value)
    elif message.member == "Get":
        return Message.new_method_return(message, "v", [Variant("b", True)])
    elif message.member == "GetAll":
        return Message.new_method_return(message, "a{sv}", [{}])
    return Message.new_method_return(message)
