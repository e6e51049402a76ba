"""Texts that another thread stops or cancels at a random moment, and the texts after them.

    python tools/fuzz/cancels.py --tries 10000 --seconds 500

A text that was cut short is the beginning of the whole one, and the next one is whole.
"""

from __future__ import annotations

import random
import sys
import threading
from typing import Any

from engine_states import PROMPTS, REQUESTS, bundle, check, expected
from pieces import run_tries

import edgedec

N_OF_A_PIECE = 50
LONGEST_S = 0.02
"""Later most texts are whole."""


def cancel_some(number: int, n_cancels: int) -> None:
    """Cancels random texts of one engine, others for each ``number``."""
    rng = random.Random(number)
    options = edgedec.EngineOptions(threads=1, prefix_cache_mb=rng.choice((0, 1)))
    with edgedec.load(bundle(), options) as engine:
        for _ in range(n_cancels):
            cancel_one(engine, rng)


def cancel_one(engine: edgedec.Engine, rng: random.Random) -> None:
    """Cancels one text at a random moment, and compares it and the next one."""
    prompt, request = rng.choice(PROMPTS), rng.choice((0, 1, 3, 4))
    ids = tuple(engine.encode(prompt))
    stream: Any = engine.stream(prompt, REQUESTS[request])
    end = stream.cancel if rng.random() < 0.5 else stream.stop
    timer = threading.Timer(rng.uniform(0, LONGEST_S), end)
    timer.start()
    pieces = list(stream)
    timer.join()
    assert stream.result.text.startswith("".join(pieces))
    check(stream.result, expected(ids, request))
    again = rng.choice((0, 1, 3))
    check(engine.generate(prompt, REQUESTS[again]), expected(ids, again))


def piece(number: int) -> int:
    """Cancels some texts."""
    cancel_some(number, N_OF_A_PIECE)
    return N_OF_A_PIECE


if __name__ == "__main__":
    sys.exit(run_tries(__doc__, "cancels", 10_000, piece))
