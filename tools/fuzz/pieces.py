"""Long searches in pieces: each call goes on where the last one stopped."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOT_YET = 3
"""Exit code: there is some left to do."""


def run_pieces(
    name: str,
    n_wanted: int,
    seconds: float,
    piece: Callable[[int], int],
    outcomes: Counter[str] | None = None,
) -> int:
    """Runs pieces for some seconds, or until so many tries are done in all calls together.

    piece: from the number of tries so far, a seed, to the number of tries it made.
    outcomes: where ``piece`` counts. It starts with the counts of earlier calls, and is printed.

    Returns:
        0 when all are done, else `NOT_YET`. How far it came is in build/fuzz/NAME.json: tries,
        outcomes, and the time that processors spent on them, children's too.
    """
    path = ROOT / f"build/fuzz/{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    done = json.loads(path.read_text()) if path.exists() else {"tries": 0, "cpu_s": 0.0}
    outcomes = Counter() if outcomes is None else outcomes
    outcomes.update(done.get("outcomes", {}))
    started_s, before_s = time.monotonic(), done["cpu_s"] - _cpu_s()
    while done["tries"] < n_wanted and time.monotonic() - started_s < seconds:
        done["tries"] += piece(done["tries"])
        done |= {"cpu_s": round(before_s + _cpu_s(), 1), "outcomes": outcomes}
        path.write_text(json.dumps(done) + "\n")
    print(f"{name}: {done['tries']} of {n_wanted} in {done['cpu_s']} s of processors")
    for outcome, count in outcomes.most_common():
        print(f"{count:5} {outcome}")
    return 0 if done["tries"] >= n_wanted else NOT_YET


def run_tries(
    doc: str,
    name: str,
    n_wanted: int,
    piece: Callable[[int], int],
    outcomes: Counter[str] | None = None,
) -> int:
    """As `run_pieces`, where the command line says how many and how long. doc: of the program.

    Tries from ``--first`` on have counts of their own: two of them use two cores.
    """
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("--tries", type=int, default=n_wanted)
    parser.add_argument("--seconds", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="number of the first try")
    options = parser.parse_args()
    name += f"_from_{options.first}" if options.first else ""
    return run_pieces(
        name, options.tries, options.seconds, lambda n_done: piece(options.first + n_done), outcomes
    )


def _cpu_s() -> float:
    return sum(os.times()[:4])
