"""`edgedec chat`: a conversation that reuses the KV cache between turns."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated, Any

import typer

from edgedec.apps import options
from edgedec.apps.generate import summary, write_stream
from edgedec.apps.progress import ProgressBars, count_amount
from edgedec.apps.terminal import note, print_error, print_json
from edgedec.models.errors import SessionError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.conversation import Conversation
from edgedec.runtime.engine import Engine, load

_HELP = "/reset begins anew, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


def chat(
    ctx: typer.Context,
    bundle: options.Bundle,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What the assistant is told first.")
    ] = None,
    max_new_tokens: options.MaxNewTokens = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    presence_penalty: options.PresencePenalty = None,
    frequency_penalty: options.FrequencyPenalty = None,
    logit_bias: options.LogitBias = None,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    context: options.Context = None,
    stop: options.Stop = None,
    stop_token: options.StopToken = None,
    ignore_eos: options.IgnoreEos = False,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Talk with a model; one line is one turn.

    Ctrl-C stops an answer and keeps what was said; between answers it leaves with exit code 130.

    Examples:

      edgedec chat smollm2.edgedec

      edgedec chat smollm2.edgedec --system "Answer in French." --temperature 0.7

      printf 'Hello\\nWho are you?\\n' | edgedec chat smollm2.edgedec --json
    """
    options.make_request(ctx.params, GenerationConfig())  # complains before anything is loaded
    with ProgressBars(count_amount) as bars:
        engine = load(bundle, threads=threads, context=context, on_progress=bars.report)
    with engine:
        request = options.make_request(ctx.params, engine.defaults)
        turns = _talk(engine, request, system, is_silent=json)
    if json:
        print_json({"turns": turns})


def _talk(
    engine: Engine, request: GenerationConfig, system: str | None, is_silent: bool
) -> list[dict[str, Any]]:
    """Answers line by line until the end of input; returns what every turn said and took."""
    conversation = engine.conversation(system, request)
    turns: list[dict[str, Any]] = []
    if sys.stdin.isatty():
        note(_HELP)
    while (line := _read_line()) is not None and line != "/exit":
        if line == "/reset":
            conversation = engine.conversation(system, request)
            note("a new conversation")
        elif line:
            try:
                turns.append({"user": line, **_answer(conversation, line, is_silent)})
            except SessionError as error:
                if not sys.stdin.isatty():
                    raise
                print_error(error)
    return turns


def _answer(conversation: Conversation, line: str, is_silent: bool) -> dict[str, Any]:
    with ProgressBars(count_amount) as bars:
        stream = conversation.send(line, on_progress=bars.report)
        write_stream(stream, bars, is_silent)
    if not is_silent:
        note(summary(stream.result))
    return stream.result.to_dict()


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
