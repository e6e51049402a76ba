"""`edgedec run --quote`: prints the likeliest span of a text as the answer to a question."""

from __future__ import annotations

import time

from edgedec.apps.console.progress import ProgressBars
from edgedec.apps.console.terminal import note, print_json, write_out
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.search.quoting import Quote


def write_quote(
    engine: Engine, question: str, text: str, bars: ProgressBars, is_json: bool
) -> None:
    """Prints the likeliest quote, and how likely it and the runner-up are.

    How long a text of many parts takes is said after the first one.
    """
    started_s = time.monotonic()

    def on_progress(phase: str, done: int, total: int) -> None:
        bars.report(phase, done, total)
        if done == 1 and total > 1:
            minutes = (time.monotonic() - started_s) * (total - 1) / 60
            note(f"the text is read in {total} parts: about {minutes:.1f} minutes to go")

    quoted = engine.quote(question, text, on_progress=on_progress)
    bars.close()
    if is_json:
        print_json(quoted.to_dict())
        return
    write_out(quoted.text + "\n")
    note(_summary(quoted))


def _summary(quoted: Quote) -> str:
    best, other = quoted.best, quoted.runner_up
    parts = [
        f"characters {best.offset} to {best.offset + len(best.text)}",
        f"probability {best.probability:.3g}",
    ]
    if other is not None:
        parts.append(f"then {other.text!r} with {other.probability:.3g}")
    parts.append(f"{quoted.n_passes} passes for {quoted.n_spans} spans")
    return " · ".join(parts)
