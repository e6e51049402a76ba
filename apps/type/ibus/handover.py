"""How the guard gives its connection to the process that answers keys, and what it must know.

Both hold the same connection, and a pair of sockets to speak: the process says that it is ready and
which calls its successor would need; the guard sends such calls of before, and then stays away from
the connection until the process has ended.
"""

from __future__ import annotations

import socket
from contextlib import suppress

from dbus_fast import Message

from edgedec.apps.type.ibus import messages
from edgedec.apps.type.ibus.connection import Connection, packed, parsed
from edgedec.models.errors import ConfigError

READY, YOURS = b"ready", b"yours"
PACKET_BYTES = 1 << 16
_FOCUS = {"FocusIn", "FocusInId", "FocusOut", "FocusOutId", "Disable"}


class Guarded:
    """What the process that answers has of the guard.

    before: the engine that was chosen before ours; empty if there was none.
    """

    def __init__(self, connection: Connection, guard: socket.socket, before: str) -> None:
        self.connection, self.before = connection, before
        self._guard = guard

    def fileno(self) -> int:
        """Returns what can be read once the guard has ended."""
        return self._guard.fileno()

    def take(self) -> list[Message]:
        """Takes the connection; returns calls from before that say what a field is.

        Raises:
            ConfigError: The guard has ended.
        """
        self._guard.send(READY)
        calls = []
        while (packet := self._guard.recv(PACKET_BYTES)) != YOURS:
            if not packet:
                raise ConfigError("the process that holds the connection to IBus ended")
            calls.append(parsed(packet))
        return calls

    def remember(self, message: Message) -> None:
        """Leaves a call to a successor."""
        with suppress(OSError):  # the guard has ended, as we shall
            self._guard.send(packed(message))


class States:
    """The latest calls that say which field has the focus, or what kind a field is."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, bool], Message] = {}

    def add(self, message: Message) -> None:
        path = message.path or ""
        if message.member == "Destroy":
            self._calls.pop((path, True), None)
            self._calls.pop((path, False), None)
            return
        key = path, message.member in _FOCUS
        self._calls.pop(key, None)  # in the order of their latest calls
        self._calls[key] = message

    def packets(self) -> list[bytes]:
        """Returns them as they are sent, in their order."""
        return [packed(message) for message in self._calls.values()]


def is_state(message: Message) -> bool:
    """Says whether a successor must know of a call."""
    if message.interface == messages.PROPERTIES:
        return message.member == "Set" and bool(message.body[1] == "ContentType")
    return message.member in _FOCUS or message.member == "Destroy"
