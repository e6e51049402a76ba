"""Checks `replay.py` against real runs: predicted over measured time, on this machine.

    python tools/draft_replay/check.py BUNDLE SET [--draft BUNDLE] [--texts 12] [--repeat 5]

SET is one of `replay.py`'s, recorded from BUNDLE's models. Held-out texts are decoded by `plain`,
`auto` and, where the set has light heads, `mtp` in turns; medians of each count. The replay gets
the costs that the engine measured here. Run it on an idle machine. `EDGEDEC_ISA=avx2` takes
narrower kernels.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from statistics import median

import numpy as np
from replay import HERE, SETS, Machine, Replay
from traces import Trace, load

from edgedec.runtime.decoding.cost_book import TARGET, CostBook
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.opening.load import load as load_bundle
from edgedec.runtime.opening.options import EngineOptions

ASK_MS = 0.15


def measured_ms(
    engine: Engine, traces: list[Trace], methods: list[str], n_times: int
) -> list[dict[str, float]]:
    """Returns what each text's tokens behind the first took, by method: medians of all rounds.

    Each round begins without what was learned, as a replay does. A text that is not the recorded
    one has no times.
    """
    taken = [{method: list[float]() for method in ("plain", *methods)} for _ in traces]
    for _ in range(n_times):
        engine.forget_drafts()
        for trace, times in zip(traces, taken, strict=True):
            prompt, text = np.split(trace.tokens, [trace.n_prompt])
            for method in list(times):
                result = engine.generate(prompt.tolist(), method=method, max_new_tokens=len(trace))
                if list(result.token_ids) != text.tolist():
                    times.clear()
                    break
                times[method].append(result.tpot_ms * (result.n_new_tokens - 1))
    return [{method: median(ms) for method, ms in times.items()} for times in taken]


def measured_machine(engine: Engine) -> Machine:
    """Returns what passes of the engine's models cost here."""
    for _ in range(2):  # costs become known, of passes over more rows in the longer texts
        for prompt in ("Name a river.", "Count from 1 to 40.", "Write a Python class."):
            engine.generate(prompt, method="auto", max_new_tokens=96)
    parts = engine.loaded.parts
    book = CostBook(parts.identity)
    target, draft = book.known(TARGET), CostTable({1: 1.0})
    if parts.draft is not None:
        draft = book.known(parts.draft.role) or draft
    if target is None:
        raise SystemExit("got no measured costs; expected those that a run of `auto` keeps")
    return Machine("here", target.row_ms, draft.row_ms, ASK_MS)


def main() -> None:
    """Prints predicted and measured gains, and predicted over measured time of all texts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("set", choices=list(SETS))
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--texts", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    name, _, drafters = SETS[arguments.set]
    methods = ["auto", "mtp"] if "mtp" in drafters else ["auto"]
    traces = [t for t in load(HERE / "traces" / f"{name}.npz") if t.is_held_out and len(t) > 16]
    traces = traces[: arguments.texts]
    predicted_ms, taken_ms = (dict.fromkeys(methods, 0.0) for _ in range(2))
    with closing(
        load_bundle(arguments.bundle, EngineOptions(draft=arguments.draft or True))
    ) as engine:
        machine = measured_machine(engine)
        all_measured = measured_ms(engine, traces, methods, arguments.repeat)
    for method in methods:
        replay = Replay(machine, drafters, is_alone=method == "mtp")
        gains = [replay.play(trace) for trace in traces]
        for trace, gain, measured in zip(traces, gains, all_measured, strict=True):
            if not measured:
                print(f"{trace.kind:14} another text than was recorded; left out")
                continue
            predicted_ms[method] += measured["plain"] / gain
            taken_ms[method] += measured[method]
            real = measured["plain"] / measured[method]
            print(f"{trace.kind:14} {method}: predicted {gain:.3f}  measured {real:.3f}")
    for method in methods:
        plain = sum(measured["plain"] for measured in all_measured if measured)
        print(
            f"{method}: predicted over measured time {predicted_ms[method] / taken_ms[method]:.3f}"
            f", speed predicted {plain / predicted_ms[method]:.3f}"
            f", measured {plain / taken_ms[method]:.3f}"
        )


if __name__ == "__main__":
    main()
