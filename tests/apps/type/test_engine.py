"""A key that is the application's: the answer leaves before anything else is done."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

pytest.importorskip("dbus_fast", reason="needs the extra type")

from dbus_fast import Message

from edgedec.apps.type.ibus import messages
from edgedec.apps.type.ibus.auxiliary_text import AuxiliaryText
from edgedec.apps.type.ibus.connection import Connection
from edgedec.apps.type.ibus.engine import Engine
from edgedec.apps.type.menu import Menu
from edgedec.apps.type.settings import SettingsFile, TypeSettings
from edgedec.apps.type.suggestions import Suggestions
from edgedec.apps.type.text_place import Application


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


def test_model_is_asked_after_the_answer(tmp_path: Path) -> None:
    daemon, ours = socket.socketpair()
    asked = Asked(daemon)
    suggestions = Suggestions(asked, AuxiliaryText(), TypeSettings)
    menu = Menu(SettingsFile(tmp_path), tmp_path, lambda: None, lambda remark: None)
    connection = Connection(ours, 1)
    engine = Engine(connection, "/engine", suggestions, menu, Application)
    engine.focus_in()
    daemon.recv(1 << 16)
    sender = Connection(daemon, 0)
    for character in "hi":
        sender.send(messages.call("ProcessKeyEvent", "uuu", ord(character), 0, 0))

    def answer(message: Message) -> Message:
        return messages.answer(message, engine.process_key_event(*message.body))

    connection.handle(answer)
    assert asked.texts == [("h", True), ("hi", True)]
    daemon.close()
    ours.close()
