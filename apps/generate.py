"""`edgedec run`: one prompt in, one text out, as it appears."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from edgedec.apps import options
from edgedec.apps.progress import ProgressBars, count_amount
from edgedec.apps.terminal import TextWriter, note, print_json, stops_on_interrupt
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine import load
from edgedec.runtime.generation import Stream
from edgedec.runtime.result import GenerationResult


def run(
    ctx: typer.Context,
    bundle: options.Bundle,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The prompt; - reads standard input.")
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read the prompt from a file.")
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Put the prompt into the chat template, or pass it as it is. By default the "
            "template is used if the bundle has one.",
        ),
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
    """Generate text from a prompt.

    Ctrl-C stops and keeps what was generated (exit code 130).

    Examples:

      edgedec run smollm2.edgedec "Why is the sky blue?"

      edgedec run smollm2.edgedec --raw "Once upon a time" --temperature 0.8 --seed 7

      git diff | edgedec run smollm2.edgedec - --json
    """
    text = _read_prompt(prompt, prompt_file)
    options.make_request(ctx.params, GenerationConfig())  # complains before anything is loaded
    with ProgressBars(count_amount) as bars:
        engine = load(bundle, threads=threads, context=context, on_progress=bars.report)
        with engine:
            is_chat = engine.has_chat_template if chat is None else chat
            stream = engine.stream(
                [{"role": "user", "content": text.rstrip("\n")}] if is_chat else text,
                options.make_request(ctx.params, engine.defaults),
                bars.report,
            )
            is_interrupted = write_stream(stream, bars, is_silent=json)
    if json:
        print_json(stream.result.to_dict())
    else:
        note(summary(stream.result))
    if is_interrupted:
        raise typer.Exit(130)


def write_stream(stream: Stream, bars: ProgressBars, is_silent: bool = False) -> bool:
    """Writes a stream to standard output as it appears; says whether Ctrl-C ended it."""
    writer = TextWriter()
    n_written = 0
    with stops_on_interrupt(stream.stop) as is_interrupted:
        for piece in stream:
            bars.close()
            n_written += len(piece)
            if not is_silent:
                writer.write(piece)
    bars.close()
    if not is_silent:
        # A stream stopped between two pieces may still hold text back.
        writer.write(stream.result.text[n_written:])
        writer.end_line()
    return is_interrupted()


def summary(result: GenerationResult) -> str:
    """Returns what a generation took, on one line."""
    n_reused = result.stats.n_reused_tokens
    reused = f" ({n_reused} reused)" if n_reused else ""
    parts = [
        f"{result.n_prompt_tokens} prompt tokens{reused}",
        f"{result.n_new_tokens} new tokens ({result.finish_reason})",
    ]
    if result.n_new_tokens:
        parts.append(f"first after {result.ttft_ms:.0f} ms")
    if result.tokens_per_s:
        parts.append(f"then {result.tokens_per_s:.1f} tokens/s")
    return " · ".join(parts)


def _read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    if (prompt is None) == (prompt_file is None):
        raise typer.BadParameter("expected either PROMPT (- for standard input) or --prompt-file")
    try:
        if prompt_file is not None:
            return prompt_file.read_text(encoding="utf-8")
        return sys.stdin.buffer.read().decode("utf-8") if prompt == "-" else str(prompt)
    except UnicodeDecodeError as error:
        raise ConfigError(f"the prompt is no UTF-8 text: {error}") from None
    except OSError as error:
        raise ConfigError(f"cannot read the prompt from {prompt_file}: {error.strerror}") from None
