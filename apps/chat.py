"""`edgedec chat`: a conversation that reuses the KV cache between turns."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import Event
from typing import Annotated, Any

import typer

from edgedec.apps.console.progress import ProgressBars, count_amount
from edgedec.apps.console.terminal import note, print_error, print_json
from edgedec.apps.options import common as options
from edgedec.apps.options.groups import takes_groups
from edgedec.apps.options.switching import SwitchOptions, tell_if_approximate
from edgedec.apps.run.command import ShowOptions, tell_if_recommended, write_stream
from edgedec.models.errors import SessionError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.conversation import Conversation
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.stream import Stream
from edgedec.training.features.replay_buffer import ReplayBuffer

_HELP = "/reset begins anew, /exit or Ctrl-D leaves, Ctrl-C stops an answer, /help shows this"
_COMMAND = re.compile(r"/[a-z]+")


@takes_groups
def chat(
    bundle: options.Bundle,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System prompt.")] = None,
    *,
    prefix_cache: Annotated[
        int,
        typer.Option(metavar="MB", min=0, help="Memory that keeps earlier conversations."),
    ] = 256,
    store: options.Store = None,
    adapt: options.Adapt = None,
    overlap: options.Overlap = "auto",
    loading: options.LoadOptions,
    request: options.RequestOptions,
    switching: SwitchOptions,
    shown: ShowOptions,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Chat with a model. One line is one turn.

    Ctrl-C stops an answer and keeps what was said. Between answers it ends the chat (exit code
    130).

    Examples:

      edgedec chat smollm2.edgedec

      edgedec chat smollm2.edgedec --system "Answer in French." --temperature 0.7

      printf 'Hello\\nWho are you?\\n' | edgedec chat smollm2.edgedec --json
    """
    switching.apply(request.make_request(GenerationConfig()))  # complains before anything is loaded
    replay = None if adapt is None else ReplayBuffer.made(adapt, bundle)
    with ProgressBars(count_amount) as bars:
        engine = loading.load(bundle, bars.report, prefix_cache, store, overlap)
    with engine:
        asked = switching.apply(request.make_request(engine.defaults))
        tell_if_approximate(asked)
        tell_if_recommended(asked, engine.defaults)
        talk = _Talk(engine, system, asked, shown, replay, is_silent=json)
        turns = talk.run()
    if json:
        print_json({"turns": turns})


@dataclass(frozen=True)
class _Talk:
    engine: Engine
    system: str | None
    request: GenerationConfig
    shown: ShowOptions
    replay: ReplayBuffer | None
    is_silent: bool

    def run(self) -> list[dict[str, Any]]:
        """Answers line by line until the end of input; returns what every turn said and took."""
        conversation = self.engine.conversation(self.system, self.request)
        turns: list[dict[str, Any]] = []
        latest: Stream | None = None
        if sys.stdin.isatty():
            note(_HELP)
        while (line := _next_line(latest)) is not None and line != "/exit":
            if line == "/reset":
                conversation = self.engine.conversation(self.system, self.request)
                note("a new conversation")
            elif _COMMAND.fullmatch(line):
                note(_HELP if line == "/help" else f"there is no {line}: {_HELP}")
            elif line:
                try:
                    latest = self._answer(conversation, line)
                    turns.append({"user": line, **latest.result.to_dict()})
                except SessionError as error:
                    if not sys.stdin.isatty():
                        raise
                    print_error(error)
        return turns

    def _answer(self, conversation: Conversation, line: str) -> Stream:
        with ProgressBars(count_amount) as bars:
            stream = conversation.send(line, on_progress=bars.report)
            write_stream(stream, bars, self.shown, self.is_silent)
        if self.replay is not None:
            self.replay.add(stream.token_ids, stream.result.origins)
        return stream


def _next_line(latest: Stream | None) -> str | None:
    """Returns the next line; while somebody types it, models catch up with the latest answer."""
    if latest is None or not sys.stdin.isatty():
        return _read_line()
    is_typed = Event()
    with ThreadPoolExecutor(1, "edgedec-idle") as idle:
        caught_up = idle.submit(latest.catch_up, is_typed.is_set)
        try:
            line = _read_line()
        finally:
            is_typed.set()
    caught_up.result()
    return line


def _read_line() -> str | None:
    """Returns the next line without the spaces around it; None at the end of input."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.strip() if line else None
    with suppress(ImportError):
        import readline  # noqa: F401  gives input() a history and line editing
    try:
        return input("> ").strip()
    except EOFError:
        note("")
        return None
    except KeyboardInterrupt:
        note("")
        raise
