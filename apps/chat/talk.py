"""The turns and the commands of a chat."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

from edgedec.apps.chat.saved import load_chat, save_chat
from edgedec.apps.chat.typed import QUOTES, read_message
from edgedec.apps.console.progress import ProgressBars, count_amount
from edgedec.apps.console.stream_text import ShowOptions, write_stream
from edgedec.apps.console.terminal import note, print_error
from edgedec.apps.user_paths import user_path
from edgedec.models.errors import ConfigError, EdgedecError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.conversation import Conversation
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.replay_buffer import ReplayBuffer
from edgedec.runtime.engine.stream import Stream
from edgedec.runtime.text.prompt import Message

_HINT = "/help lists the commands; Ctrl-C stops an answer; Ctrl-D leaves"
_HELP = f"""\
{QUOTES}            begin and end a message of several lines with this
/system TEXT   change the system prompt and keep the turns; without TEXT, show it
/undo          remove the latest question and its answer
/save FILE     save the chat as JSON
/load FILE     continue a saved chat
/reset         begin a new chat
/help          show this
/exit          leave, as does Ctrl-D; Ctrl-C stops an answer"""
_COMMAND = re.compile(r"(/[a-z]+)(?:\s+(.*))?", re.DOTALL)


class Talk:
    """One chat: a conversation, and what its user does with it."""

    def __init__(
        self,
        engine: Engine,
        system: str | None,
        request: GenerationConfig,
        shown: ShowOptions,
        replay: ReplayBuffer | None,
        is_silent: bool,
    ) -> None:
        self._engine = engine
        self._system = system
        self._request = request
        self._shown = shown
        self._replay = replay
        self._is_silent = is_silent
        self._turns: list[dict[str, Any]] = []
        self._latest: Stream | None = None
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda text: note(_HELP),
            "/load": self._load,
            "/reset": self._reset,
            "/save": self._save,
            "/system": self._change_system,
            "/undo": self._undo,
        }
        self._conversation = self._new()

    def run(self) -> list[dict[str, Any]]:
        """Answers until the end of input; returns what each turn said and took."""
        if sys.stdin.isatty():
            note(_HINT)
        while (message := self._next_message()) is not None and message.strip() != "/exit":
            try:
                self._take(message)
            except EdgedecError as error:
                if not sys.stdin.isatty():
                    raise
                print_error(error)
        return self._turns

    def _take(self, message: str) -> None:
        """Runs a command, or answers."""
        match = _COMMAND.fullmatch(message.strip())
        command, text = (match[1], (match[2] or "").strip()) if match else ("", "")
        if command in self._commands:
            self._commands[command](text)
        elif command and not text:
            note(f"there is no {command}: {_HINT}")
        elif message.strip():
            self._answer(message.strip())

    def _answer(self, message: str) -> None:
        n_left_out = self._conversation.n_left_out
        with ProgressBars(count_amount) as bars:
            stream = self._conversation.send(message, on_progress=bars.report)
            self._latest = stream
            if (n := self._conversation.n_left_out) > n_left_out:
                note(
                    f"the context is full: the model no longer sees the first {n} messages (it "
                    "keeps the system prompt and the latest turns)"
                )
            write_stream(stream, bars, self._shown, self._is_silent)
        if self._replay is not None:
            self._replay.add(stream.token_ids, stream.result.origins)
        self._turns.append({"user": message, **stream.result.to_dict()})

    def _new(self, messages: Sequence[Message] = ()) -> Conversation:
        self._latest = None
        return self._engine.conversation(
            self._system, self._request, messages=messages, is_sliding=True
        )

    def _reset(self, text: str) -> None:
        self._conversation = self._new()
        note("a new chat")

    def _change_system(self, text: str) -> None:
        if not text:
            note(self._system or "there is no system prompt: set one with /system TEXT")
            return
        self._system = text
        self._conversation = self._new(self._said())
        note("the system prompt is changed")

    def _undo(self, text: str) -> None:
        question = self._conversation.undo()
        self._latest = None
        note("there is nothing to undo" if question is None else f"removed: {question}")

    def _save(self, text: str) -> None:
        save_chat(path := _file(text, "/save"), self._conversation.messages)
        note(f"saved in {path}")

    def _load(self, text: str) -> None:
        messages = load_chat(path := _file(text, "/load"))
        system, turns = self._system, messages
        if messages and messages[0]["role"] == "system":
            system, turns = messages[0]["content"], messages[1:]
        before, self._system = self._system, system
        try:
            self._conversation = self._new(turns)
        except EdgedecError:
            self._system = before
            raise
        note(f"{len(messages)} messages from {path}")

    def _said(self) -> list[dict[str, Any]]:
        """Returns the messages after the system prompt."""
        messages = list(self._conversation.messages)
        return messages[1:] if messages and messages[0]["role"] == "system" else messages

    def _next_message(self) -> str | None:
        """Returns the next message; while somebody types it, models catch up with the answer."""
        if self._latest is None or not sys.stdin.isatty():
            return read_message()
        is_typed = Event()
        with ThreadPoolExecutor(1, "edgedec-idle") as idle:
            caught_up = idle.submit(self._latest.catch_up, is_typed.is_set)
            try:
                message = read_message()
            finally:
                is_typed.set()
        caught_up.result()
        return message


def _file(text: str, command: str) -> Path:
    if not text:
        raise ConfigError(f"{command} needs the name of a file: {command} chat.json")
    return user_path(text)
