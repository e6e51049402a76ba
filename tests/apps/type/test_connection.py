"""A process that answers IBus may die anywhere: the next one answers the same messages."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("dbus_fast", reason="needs the extra type")

from dbus_fast import Message, Variant

from edgedec.apps.type.ibus import messages
from edgedec.apps.type.ibus.connection import Connection, parsed
from edgedec.apps.type.ibus.handover import States, is_state
from edgedec.models.errors import ConfigError

LONG = "x" * 1_000_000


class FaultError(Exception):
    """The process that answers has a fault."""


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    """IBus' end of a connection, and ours."""
    daemon, ours = socket.socketpair()
    yield Connection(daemon, 0), ours
    daemon.close()
    ours.close()


def key(character: str) -> Message:
    return messages.call("ProcessKeyEvent", "uuu", ord(character), 0, 0)


def answered(daemon: Connection) -> list[int]:
    """Returns which calls the daemon gets replies to, in order."""
    found = []
    while (raw := daemon._next()) is not None:
        daemon._socket.recv(len(raw))
        found.append(parsed(raw).reply_serial)
    return found


def test_a_successor_answers_what_a_fault_left(ends: tuple[Connection, socket.socket]) -> None:
    daemon, ours = ends
    keys = [daemon.send(key(character)) for character in "abc"]

    def fails_at_b(message: Message) -> Message:
        if message.body[0] == ord("b"):
            first.send(Message.new_signal("/x", messages.ENGINE, "Beep"))
            raise FaultError
        return messages.answer(message)

    first = Connection(ours.dup(), 1)
    with pytest.raises(FaultError):
        first.handle(fails_at_b)
    first.close()
    assert answered(daemon) == keys[:1]  # and nothing of the answer that was begun
    second = Connection(ours.dup(), 2)
    second.handle(messages.answer)
    second.close()
    assert answered(daemon) == keys[1:]


def test_what_no_answer_needs_waits_for_it(ends: tuple[Connection, socket.socket]) -> None:
    daemon, ours = ends
    keys = [daemon.send(key(character)) for character in "ab"]
    connection, had = Connection(ours, 1), list[list[int]]()

    def answer(message: Message) -> Message:
        connection.after_answer(lambda: had.append(answered(daemon)))
        return messages.answer(message)

    connection.handle(answer)
    assert had == [keys[:1], keys[1:]]


def test_long_messages(ends: tuple[Connection, socket.socket]) -> None:
    daemon, ours = ends
    connection, texts = Connection(ours, 1), list[str]()

    def read(message: Message) -> Message:
        texts.append(message.body[0])
        return messages.answer(message)

    sending = threading.Thread(
        target=lambda: [daemon.send(messages.call("X", "s", text)) for text in ("a", LONG, "b")]
    )
    sending.start()
    while len(texts) < 3:
        connection.handle(read)
    sending.join()
    assert texts == ["a", LONG, "b"]


def test_the_other_end_is_gone(ends: tuple[Connection, socket.socket]) -> None:
    daemon, ours = ends
    daemon.close()
    connection = Connection(ours, 1)
    connection.handle(messages.answer)
    assert not connection.is_open
    with pytest.raises(ConfigError, match="GetGlobalEngine"):
        connection.ask(messages.call("GetGlobalEngine"), messages.answer)


def test_what_a_successor_is_told() -> None:
    def event(path: str, member: str, *body: object, signature: str = "") -> Message:
        interface = messages.PROPERTIES if member == "Set" else messages.ENGINE
        return Message(
            path=path, interface=interface, member=member, signature=signature, body=list(body),
            serial=1,
        )  # fmt: skip

    content = (messages.ENGINE, "ContentType", Variant("(uu)", [8, 0]))
    calls = [
        event("/a", "FocusIn"),
        event("/a", "Set", *content, signature="ssv"),
        event("/b", "FocusIn"),
        event("/b", "ProcessKeyEvent", 1, 2, 3, signature="uuu"),
        event("/a", "FocusOut"),
        event("/b", "Destroy"),
    ]
    states = States()
    for call in filter(is_state, calls):
        states.add(call)
    told = [parsed(packet) for packet in states.packets()]
    assert [(call.path, call.member) for call in told] == [("/a", "Set"), ("/a", "FocusOut")]
    assert tuple(told[0].body[2].value) == (8, 0)  # older versions of dbus-fast have a list
