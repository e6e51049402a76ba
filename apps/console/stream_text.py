"""A stream, written as it appears, and what it took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from edgedec.apps.console.draft_colours import OriginColours
from edgedec.apps.console.progress import ProgressBars
from edgedec.apps.console.provisional import PieceWriter
from edgedec.apps.console.terminal import TextWriter, note, stops_on_interrupt
from edgedec.apps.console.thoughts import ThoughtWriter
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.engine.stream import Stream


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """What to show beside the text."""

    show_drafts: Annotated[
        bool, typer.Option("--show-drafts", help="Colour tokens by the drafter they come from.")
    ] = False
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what the method decided, and why.")
    ] = False
    explain_rounds: Annotated[
        bool, typer.Option("--explain-rounds", help="Show that of each round, too, a line each.")
    ] = False


def write_stream(stream: Stream, bars: ProgressBars, shown: ShowOptions, is_silent: bool) -> bool:
    """Writes a stream to standard output as it appears, then what it took to standard error.

    Returns whether Ctrl-C ended it. Nothing is written if ``is_silent``, except explanations.
    Colours tell of drafts where asked for, and of models that take turns always.
    """
    colours = OriginColours()
    is_switching = stream.takes_turns
    is_coloured = shown.show_drafts or is_switching
    writer = TextWriter(colours.paint) if is_coloured else TextWriter()
    pieces, thoughts = PieceWriter(writer), ThoughtWriter()
    n_written = 0
    with stops_on_interrupt(stream.stop) as is_interrupted:
        for piece in stream.pieces:
            bars.close()
            if piece.is_thought:
                thoughts.write("" if is_silent else piece.text)
                continue
            thoughts.end()
            if not is_silent:
                pieces.write(piece)
            if not piece.is_provisional:
                n_written += len(piece.text)
    bars.close()
    thoughts.end()
    if not is_silent:
        pieces.end()
        # A stream stopped between two pieces may still hold text back.
        writer.write(stream.result.text[n_written:])
        writer.end_line()
        note(summary(stream.result))
        note_if_cut(stream.result)
        if is_switching and stream.result.switch:  # none where it was stopped before it began
            note(switch_summary(stream.result))
        if is_coloured:
            colours.print_legend(stream.result.origins)
    if shown.explain_rounds:
        for line in stream.explain_rounds():
            note(line)
    if shown.explain or shown.explain_rounds:
        for line in explanation(stream):
            note(line)
    return is_interrupted()


def note_if_cut(result: GenerationResult) -> None:
    """Notes that a limit, and not the model, ended an answer."""
    if result.finish_reason == "length":
        note(f"stopped at {result.n_new_tokens} tokens; -n 0: to the end")
    elif result.finish_reason == "context":
        n_tokens = result.n_prompt_tokens + result.n_new_tokens
        note(
            f"stopped after {n_tokens} tokens, because the context is full: --context N changes it"
        )


def explanation(stream: Stream) -> list[str]:
    """Returns why the method of a finished stream did what it did."""
    return stream.explain() or [f"the method {stream.method} decides nothing"]


def summary(result: GenerationResult) -> str:
    """Returns what a generation took, on one line."""
    n_reused = result.stats.n_reused_tokens
    reused = f" ({n_reused} reused)" if n_reused else ""
    parts = [
        f"{result.n_prompt_tokens} prompt tokens{reused}",
        f"{result.n_new_tokens} new tokens ({result.finish_reason})",
    ]
    if result.provisional_ms:
        stats = result.stats
        parts.append(
            f"{stats.n_confirmed} of {stats.n_provisional} provisional tokens held, the first "
            f"after {result.provisional_ms:.0f} ms"
        )
    if result.n_new_tokens:
        parts.append(f"first after {result.ttft_ms:.0f} ms")
    if result.tokens_per_s:
        rate = f"{result.tokens_per_s:.1f} tokens/s"
        parts.append(f"then {rate}" if result.is_in_order else f"{rate} in all")
    return " · ".join(parts)


def switch_summary(result: GenerationResult) -> str:
    """Returns what taking turns came to, on one line."""
    switch = result.switch
    passes = switch["passes"].values()
    caught_up = sum(counts["n_caught_up"] for counts in passes)
    parts = [
        f"{switch['share_target']:.1%} of the tokens from the target model",
        f"{switch['n_switches']} switches",
        f"{caught_up} missed tokens caught up in "
        f"{sum(counts['catch_up_ms'] for counts in passes):.0f} ms",
    ]
    if switch["cost_paper"] is not None:
        parts.append(f"cost without catch-up {switch['cost_paper']:.2f} of the target model's")
    return " · ".join(parts)
