"""Holds the connection to IBus, so that no key is lost when the process that answers keys ends.

When an engine's process ends, IBus has an error for each key that is on its way, in any order. GTK
takes them in that order, and Qt drops them. The guard does next to nothing, so that nothing ends it
but a signal; and the other process then ends as it should.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any, NoReturn

from dbus_fast import Message

from edgedec.apps.console.terminal import note
from edgedec.apps.type.ibus import messages
from edgedec.apps.type.ibus.connection import Connection, connect, parsed
from edgedec.apps.type.ibus.handover import PACKET_BYTES, READY, YOURS, States, is_state
from edgedec.apps.type.ibus.service import choose_again, chosen
from edgedec.models.errors import ConfigError

_ANSWERING = ("-m", "edgedec.apps.type.program")
_AGAIN_S = 1.0
"""After a process has ended, or IBus, how long until it is tried again."""

_N_TRIES = 12
"""Of a start while another one, whose guard was killed, still answers keys."""

_NO_IBUS = (
    "IBus does not run in this session: start it with `ibus-daemon --daemonize --xim` and log in "
    "again if applications do not use it"
)


class RunsAlreadyError(ConfigError):
    """Another process has our name in this session."""


async def guard(arguments: dict[str, Any], version: str) -> NoReturn:
    """Registers with IBus and has keys answered until it is cancelled.

    arguments: for `suggest_everywhere`.

    Raises:
        ConfigError: IBus does not run.
        SystemExit: Keys cannot be answered; the other process has said why.
    """
    connection = await _first_connection(version)
    while True:
        await Guard(connection, arguments).run()
        note("IBus ended; waiting for it to start again")
        connection = await _connected_again(version)


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


def connected(version: str) -> Connection:
    """Returns a connection to IBus that has our engine registered.

    Raises:
        RunsAlreadyError: IBus has our engine from another process.
        ConfigError: IBus does not run, or refuses.
    """
    connection = connect(find_address())
    bus = {"destination": messages.BUS, "path": messages.BUS_PATH, "interface": messages.BUS}
    connection.ask(Message(member="Hello", **bus), messages.answer)
    request = Message(
        member="RequestName", signature="su", body=[messages.BUS_NAME, messages.AT_ONCE], **bus
    )
    if connection.ask(request, messages.answer).body != [messages.IS_OURS]:
        raise RunsAlreadyError("edgedec type runs already in this session: end that one first")
    described = messages.call("RegisterComponent", "v", messages.component(version))
    connection.ask(described, messages.answer)
    return connection


async def _first_connection(version: str) -> Connection:
    """Returns what `connected` does. One before us may be about to end."""
    for _ in range(_N_TRIES):
        with suppress(RunsAlreadyError):
            return connected(version)
        await asyncio.sleep(_AGAIN_S)
    return connected(version)


async def _connected_again(version: str) -> Connection:
    while True:
        await asyncio.sleep(_AGAIN_S)
        with suppress(ConfigError):
            return connected(version)


class Guard:
    """Starts the process that answers, again if it ends, and answers while there is none.

    Args:
        arguments: as for `guard`.
    """

    def __init__(self, connection: Connection, arguments: dict[str, Any]) -> None:
        self._connection, self._arguments = connection, arguments
        self._states = States()
        self._is_held = self._was_ready = False
        self._before = chosen(connection, messages.answer)

    async def run(self) -> None:
        """Returns when IBus has ended.

        Raises:
            SystemExit: The process ended before it answered anything.
        """
        turn = 0
        try:
            self._hold()
            while self._connection.is_open:
                turn += 1
                code = await self._run_once(turn)
                self._hold()
                if not self._was_ready:
                    sys.exit(code)
                if self._connection.is_open:
                    note(f"the process that answers keys ended ({code}); it starts again")
                    await asyncio.sleep(_AGAIN_S)
        finally:
            self._hold()
            with suppress(ConfigError):
                choose_again(self._connection, self._before, self._answer)
            self._let_go()
            self._connection.close()

    async def _run_once(self, turn: int) -> int:
        """Returns what the process ended with."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        numbers = self._connection.fileno(), theirs.fileno()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *_ANSWERING,
            json.dumps({**self._arguments, "turn": turn, "before": self._before}),
            *map(str, numbers),
            pass_fds=numbers,
        )
        theirs.close()
        loop.add_reader(ours, self._hear, ours)
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
            loop.remove_reader(ours)
            self._hear(ours)
            ours.close()

    def _hear(self, other: socket.socket) -> None:
        """Takes what the process that answers says."""
        with suppress(BlockingIOError, ConnectionError):
            while packet := other.recv(PACKET_BYTES, socket.MSG_DONTWAIT):
                if packet != READY:
                    self._states.add(parsed(packet))
                    continue
                self._was_ready = True
                self._let_go()
                for state in self._states.packets():
                    other.send(state)
                other.send(YOURS)
            asyncio.get_running_loop().remove_reader(other)  # it has ended

    def _hold(self) -> None:
        """Answers until `_let_go`."""
        if self._is_held or not self._connection.is_open:
            return
        self._is_held = True
        asyncio.get_running_loop().add_reader(self._connection.fileno(), self._on_arrival)
        self._on_arrival()

    def _let_go(self) -> None:
        if self._is_held:
            self._is_held = False
            asyncio.get_running_loop().remove_reader(self._connection.fileno())

    def _on_arrival(self) -> None:
        self._connection.handle(self._answer)
        if not self._connection.is_open:
            self._let_go()

    def _answer(self, message: Message) -> Message:
        if is_state(message):
            self._states.add(message)
        return messages.answer(message)
