"""A key that is the application's: the answer leaves before anything else is done."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("dbus_fast", reason="needs the extra type")


from edgedec.apps.type.ibus import messages
from edgedec.apps.type.ibus.auxiliary_text import AuxiliaryText
from edgedec.apps.type.ibus.connection import Connection
from edgedec.apps.type.ibus.engine import Engine
from edgedec.apps.type.menu import Menu
from edgedec.apps.type.settings import SettingsFile, TypeSettings
from edgedec.apps.type.suggestions import Suggestions
from edgedec.apps.type.text_place import Application

ESCAPE = 0xFF1B
LONG_S = 0.1
"""After a key, until which a caret's place is that key's wherever it is."""


class Asked:
    """A model that notes what it was asked, and whether IBus had the answer to the key by then."""

    def __init__(self, daemon: socket.socket) -> None:
        self._daemon = daemon
        self.texts: list[tuple[str, bool]] = []

    def update(self, before: str, after: str) -> None:
        try:
            has_answer = bool(self._daemon.recv(1 << 16, socket.MSG_DONTWAIT))
        except BlockingIOError:
            has_answer = False
        self.texts.append((before, has_answer))

    def alternatives(self) -> None: ...

    def pause(self) -> None: ...


class Field:
    """An engine, the daemon that it answers, and the model that it asks."""

    def __init__(self, folder: Path) -> None:
        self.daemon, ours = socket.socketpair()
        self.asked = Asked(self.daemon)
        self.suggestions = Suggestions(self.asked, AuxiliaryText(), TypeSettings)
        menu = Menu(SettingsFile(folder), folder, lambda: None, lambda remark: None)
        self._connection, self._sender = Connection(ours, 1), Connection(self.daemon, 0)
        self.engine = Engine(self._connection, "/engine", self.suggestions, menu, Application)
        self.engine.focus_in()
        self.daemon.recv(1 << 16)

    def press(self, *keys: int, state: int = 0) -> None:
        for key in keys:
            self._sender.send(messages.call("ProcessKeyEvent", "uuu", key, 0, state))
        self._connection.handle(
            lambda message: messages.answer(message, self.engine.process_key_event(*message.body))
        )

    def report(self, text: str, anchor: int | None = None) -> None:
        """The application reports its text, with the cursor at the end."""
        at = len(text)
        self.engine.set_surrounding_text(messages.text(text), at, at if anchor is None else anchor)

    def close(self) -> None:
        self._connection.close()
        self._sender.close()


@pytest.fixture
def field(tmp_path: Path) -> Iterator[Field]:
    found = Field(tmp_path)
    yield found
    found.close()


def test_model_is_asked_after_the_answer(field: Field) -> None:
    field.press(*map(ord, "hi"))
    assert field.asked.texts == [("h", True), ("hi", True)]


def test_a_late_report_is_asked_about(field: Field) -> None:
    """The application had a text that nobody knew of; it says so behind the last key."""
    field.press(*map(ord, "hi"))
    field.report("Oh, h")  # which lacks a key
    field.report("Oh, hi")
    assert [text for text, _ in field.asked.texts] == ["h", "hi", "Oh, hi"]


@pytest.mark.parametrize(
    "happens",
    [
        lambda field: field.press(ESCAPE),
        lambda field: field.press(ord("v"), state=messages.CONTROL),
        lambda field: field.engine.clicked(),
        lambda field: field.engine.focus_in(),
    ],
)
def test_a_report_for_something_else_is_not(field: Field, happens: Callable[[Field], None]) -> None:
    field.press(*map(ord, "hi"))
    happens(field)
    field.report("Oh, hi")
    assert [text for text, _ in field.asked.texts] == ["h", "hi"]


def test_a_selection_is_not_asked_about(field: Field) -> None:
    field.press(*map(ord, "hi"))
    field.report("Oh, hi", anchor=0)
    assert [text for text, _ in field.asked.texts] == ["h", "hi"]


@pytest.mark.parametrize(("happens", "ghost"), [("a key", "ital"), ("a click", "")])
def test_a_caret_that_is_reported_late(field: Field, happens: str, ghost: str) -> None:
    """A busy application handles several keys before it says where the caret is."""
    field.press(*map(ord, "The cap"))
    field.engine.set_cursor_location(0, 0, 1, 18)
    field.suggestions.offered("ital", True)
    time.sleep(2 * LONG_S)
    if happens == "a click":
        field.engine.clicked()
    field.engine.set_cursor_location(200, 0, 1, 18)
    assert field.suggestions.ghost == ghost
