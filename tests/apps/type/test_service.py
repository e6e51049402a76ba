"""The end of `edgedec type`: IBus gets another engine only once no key is on its way to ours."""

from __future__ import annotations

import asyncio
import socket

import pytest

pytest.importorskip("dbus_fast", reason="needs the extra type")

from dbus_fast import Message, MessageType, Variant

from edgedec.apps.type.ibus import messages
from edgedec.apps.type.ibus.connection import Connection, parsed
from edgedec.apps.type.ibus.engine import Engine
from edgedec.apps.type.ibus.handover import READY, YOURS, Guarded
from edgedec.apps.type.ibus.service import Service

N_KEYS = 20
PAUSE_S = 2.0
"""Longer than the next key of this test takes on a busy machine."""


def refuse(connection: Connection, path: str) -> Engine:
    raise AssertionError("no field is shown here")


class Daemon:
    """IBus' end: it sends the next key when it has the answer to the one before."""

    def __init__(self, end: socket.socket) -> None:
        self._connection = Connection(end, 0)
        self._n_left = N_KEYS
        self.calls: list[str] = []

    def send_key(self) -> None:
        self._n_left -= 1
        self._connection.send(messages.call("ProcessKeyEvent", "uuu", ord("x"), 0, 0))

    def read(self) -> None:
        while (raw := self._connection._next()) is not None:
            message = parsed(raw)
            self._connection._socket.recv(len(raw))
            if message.message_type is MessageType.METHOD_CALL:
                self.calls.append(message.member or "")
                self._reply(message)
            elif message.signature == "b":
                self.calls.append("key")
                if self._n_left:
                    self.send_key()

    def _reply(self, message: Message) -> None:
        body: tuple[str, list[object]] = ("", [])
        if message.member == "GetGlobalEngine":
            body = ("v", [Variant("(sa{sv}s)", ["IBusEngineDesc", {}, messages.ENGINE_NAME])])
        self._connection.send(Message.new_method_return(message, *body))


def test_no_key_is_overtaken_in_the_end() -> None:
    async def run() -> list[str]:
        ibus, ours = socket.socketpair()
        guard, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        daemon, loop = Daemon(ibus), asyncio.get_running_loop()
        guard.send(YOURS)
        service = Service(refuse, Guarded(Connection(ours, 1), theirs, "before"), PAUSE_S)
        answering = loop.run_in_executor(None, serve, daemon, ibus)
        service.start()
        assert guard.recv(100) == READY
        daemon.send_key()
        guard.close()
        await service.wait()
        await service.close()
        ours.close()
        await answering
        return daemon.calls

    calls = asyncio.run(run())
    assert calls[-N_KEYS - 2 :] == ["key"] * N_KEYS + ["GetGlobalEngine", "SetGlobalEngine"]


def serve(daemon: Daemon, end: socket.socket) -> None:
    """Reads until the other end is closed."""
    end.setblocking(True)
    while end.recv(1, socket.MSG_PEEK):
        daemon.read()
