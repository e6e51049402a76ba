"""A connection to IBus that outlives the process which answers on it."""

from __future__ import annotations

import io
import select
import socket
import struct
import time
from collections.abc import Callable

from dbus_fast import Message, MessageType

# dbus-fast's public classes take each message out of the socket before it is answered. This name
# and `Message._marshall` are private and may change in any version: 2.11.1 and 5.2.0 were tried.
from dbus_fast._private.unmarshaller import Unmarshaller

from edgedec.models.errors import ConfigError
from edgedec.system.processes import user_id

_LONG_BYTES = 1 << 15
"""Longer messages are taken out of the socket in parts, as it may not hold them whole."""

_PEEK_BYTES = 1 << 17
_PATIENCE_S = 10.0
_NO_REPLY = 1
_SERIALS = 1 << 20
"""Serial numbers for each process that sends on a connection."""

Answer = Callable[[Message], Message | None]


class Connection:
    """A D-Bus connection whose messages stay in the socket until they are answered.

    Any process that holds the socket can go on where another one died: it finds each message that
    has no answer yet, whole. What an answer consists of leaves in one piece, so that it is sent as
    a whole or not at all.

    Args:
        connected: Authenticated; only one process reads it at a time.
        turn: How many processes answered on it before.
    """

    def __init__(self, connected: socket.socket, turn: int) -> None:
        self._socket = connected
        self._serial = turn * _SERIALS
        self._taken = b""  # of a long message
        self._unsent: bytearray | None = None  # while a message is being answered
        self._replies: dict[int, Message | None] = {}
        self._later: list[Callable[[], None]] = []
        self.is_open = True

    def fileno(self) -> int:
        """Returns what can be read when IBus has sent something."""
        return self._socket.fileno()

    def close(self) -> None:
        self.is_open = False
        self._socket.close()

    def send(self, message: Message) -> int:
        """Sends a message, with the answer that is being made if there is one; returns its serial.

        Raises:
            OSError: IBus is gone.
        """
        self._serial = self._serial % 0xFFFFFFFF + 1
        message.serial = self._serial
        raw = packed(message)
        if self._unsent is None:
            self._socket.sendall(raw)
        else:
            self._unsent += raw
        return self._serial

    def after_answer(self, function: Callable[[], None]) -> None:
        """Calls ``function`` once the answer that is being made has left, before the next one."""
        self._later.append(function)

    def handle(self, answer: Answer) -> None:
        """Answers all calls that have arrived; `is_open` tells whether IBus still runs.

        A message that ``answer`` has an exception for stays where it is.
        """
        try:
            while self.is_open and (raw := self._next()) is not None:
                self._handle(parsed(raw), answer)
                if self._taken:
                    self._taken = b""
                else:
                    self._socket.recv(len(raw))
                while self._later:
                    self._later.pop(0)()
        except ConnectionError:
            self.is_open = False

    def ask(self, message: Message, answer: Answer) -> Message:
        """Returns the reply to a call; answers meanwhile.

        Raises:
            ConfigError: IBus ended, refuses, or does not reply.
        """
        reply: Message | None = None
        try:
            serial = self.send(message)
        except OSError as error:
            raise ConfigError(f"IBus ended before {message.member}") from error
        self._replies[serial] = None
        end_s = time.monotonic() + _PATIENCE_S
        while reply is None:
            left_s = end_s - time.monotonic()
            if not self.is_open or left_s <= 0:
                del self._replies[serial]
                raise ConfigError(f"IBus has no reply to {message.member}")
            if select.select([self._socket], [], [], left_s)[0]:
                self.handle(answer)
            reply = self._replies[serial]
        del self._replies[serial]
        if reply.message_type is MessageType.ERROR:
            reason = " ".join(map(str, reply.body))
            raise ConfigError(f"IBus refuses {message.member}: {reason}")
        return reply

    def _handle(self, message: Message, answer: Answer) -> None:
        if message.message_type is not MessageType.METHOD_CALL:
            if message.reply_serial in self._replies:
                self._replies[message.reply_serial] = message
            return
        self._unsent = bytearray()
        try:
            reply = answer(message)
            if reply is not None and not message.flags.value & _NO_REPLY:
                self.send(reply)
            unsent = self._unsent
        finally:
            self._unsent = None
        if unsent:
            self._socket.sendall(unsent)

    def _next(self) -> bytes | None:
        """Returns the next message, which stays in the socket unless it is long; None: not yet."""
        if not self._taken:
            raw = self._arrived(_PEEK_BYTES, socket.MSG_PEEK)
            length = _length(raw)
            if length is None or length <= _LONG_BYTES:
                return raw[:length] if length is not None and len(raw) >= length else None
            self._taken = self._socket.recv(min(length, len(raw)))
        length = _length(self._taken)
        assert length is not None
        while len(self._taken) < length:
            part = self._socket.recv(length - len(self._taken))
            if not part:
                raise ConnectionResetError
            self._taken += part
        return self._taken

    def _arrived(self, n_bytes: int, flags: int) -> bytes:
        try:
            raw = self._socket.recv(n_bytes, flags | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""
        self.is_open = bool(raw)
        return raw


def connect(address: str) -> Connection:
    """Returns a connection to a D-Bus at a Unix socket.

    Raises:
        ConfigError: Nobody listens there, or refuses us.
    """
    parts = dict(part.split("=", 1) for part in address.removeprefix("unix:").split(",") if part)
    name = parts["path"] if "path" in parts else "\0" + parts.get("abstract", "")
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.connect(name)
        user = str(user_id()).encode().hex()
        connected.sendall(f"\0AUTH EXTERNAL {user}\r\n".encode())
        answered = connected.recv(1024)
        if not answered.startswith(b"OK "):
            raise ConfigError(f"IBus refuses a connection: {answered.decode(errors='replace')}")
        connected.sendall(b"BEGIN\r\n")
    except OSError as error:
        connected.close()
        raise ConfigError(f"cannot connect to IBus at {address}: {error.strerror}") from None
    return Connection(connected, 0)


def parsed(raw: bytes) -> Message:
    """Returns the message that some bytes hold."""
    message = Unmarshaller(io.BytesIO(raw)).unmarshall()
    assert message is not None
    return message


def packed(message: Message) -> bytes:
    """Returns a message as it is sent; its serial must be set."""
    return bytes(message._marshall(False))  # no file descriptors


def _length(raw: bytes) -> int | None:
    """Returns how many bytes the message at the beginning of ``raw`` has; None: not known yet.

    Source: D-Bus specification, Message Format.
    """
    if len(raw) < 16:
        return None
    order = "<" if raw[:1] == b"l" else ">"
    (body_bytes,) = struct.unpack_from(order + "I", raw, 4)
    (fields_bytes,) = struct.unpack_from(order + "I", raw, 12)
    n_bytes: int = 16 + (fields_bytes + 7) // 8 * 8 + body_bytes
    return n_bytes
