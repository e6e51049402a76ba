"""Threads that ask one engine at once for whatever it can do.

    python tools/fuzz/engine_threads.py --tries 10000 --seconds 500

Each text is that of an engine that nobody else asks, one that was cut short is its beginning, and
nothing ends in an error. Python changes between the threads far more often than it does by itself.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from engine_states import PROMPTS, REQUESTS, bundle, check, expected
from pieces import run_tries

import edgedec

N_THREADS = 6  # more than the engine keeps idle sequences for
N_ASKED = 8  # by each thread of an engine
SWITCH_S = 1e-5
SPECIAL = "a<|im_end|>b"  # which stays text where others write the token at the same time
ALL_PROMPTS: list[Any] = [*PROMPTS, SPECIAL, [{"role": "user", "content": "hello"}]]
SUGGEST = edgedec.SuggestConfig(n_tokens=3)


@cache
def known() -> list[tuple[tuple[int, ...], list[Any]]]:
    """Returns ids and suggestions of all that is asked, from an engine that nobody else asks."""
    with edgedec.load(bundle(), edgedec.EngineOptions(threads=1)) as engine:
        return [(tuple(engine.encode(a)), engine.suggest(a, SUGGEST)) for a in ALL_PROMPTS]


class Asker:
    """What one thread asks for."""

    def __init__(self, engine: edgedec.Engine, rng: random.Random, file: Path) -> None:
        self._engine = engine
        self._rng = rng
        self._file = file

    def ask(self) -> None:
        """Asks for something; raises where the answer is wrong."""
        acts = [self._generate, self._suggest, self._cut] * 3
        self._rng.choice([*acts, self._let_go, self._borrow, self._session, self._forget])()

    def _generate(self) -> None:
        number, request = self._choose()
        result = self._engine.generate(ALL_PROMPTS[number], REQUESTS[request])
        check(result, expected(known()[number][0], request))

    def _suggest(self) -> None:
        number, _ = self._choose()
        assert self._engine.suggest(ALL_PROMPTS[number], SUGGEST) == known()[number][1]

    def _cut(self) -> None:
        number, request = self._choose()
        stream = self._engine.stream(ALL_PROMPTS[number], REQUESTS[request])
        for _ in range(self._rng.randrange(6)):
            next(stream, None)
        self._rng.choice([stream.stop, stream.cancel])()
        check(stream.result, expected(known()[number][0], request))
        stream.catch_up()

    def _let_go(self) -> None:
        number, request = self._choose()
        next(self._engine.stream(ALL_PROMPTS[number], REQUESTS[request]), None)

    def _borrow(self) -> None:
        ids, _ = known()[self._choose()[0]]
        with self._engine.borrowed(ids) as sequence:
            self._engine.learn(sequence.tokens)

    def _session(self) -> None:
        if self._file.exists() and self._rng.random() < 0.5:
            self._engine.load_session(self._file)
        else:
            ids, _ = known()[self._choose()[0]]
            self._engine.save_session(self._file, self._rng.choice([None, ids]))

    def _forget(self) -> None:
        self._rng.choice([self._engine.forget_prompts, self._engine.forget_drafts])()

    def _choose(self) -> tuple[int, int]:
        """Returns the number of a prompt, and of a request."""
        return self._rng.randrange(len(ALL_PROMPTS)), self._rng.randrange(len(REQUESTS))


def ask_at_once(number: int) -> int:
    """Has threads ask a new engine, each ``number`` for other things; returns for how many."""
    for ids, _ in known():
        for request in range(len(REQUESTS)):
            expected(ids, request)
    with tempfile.TemporaryDirectory() as folder:
        options = edgedec.EngineOptions(
            threads=1, prefix_cache_mb=1, store=Path(folder, "texts.ngrams")
        )
        with edgedec.load(bundle(), options) as engine:

            def work(thread: int) -> None:
                rng = random.Random(f"{number} {thread}")
                asker = Asker(engine, rng, Path(folder, f"{thread}.session"))
                for _ in range(N_ASKED):
                    asker.ask()

            _at_once(work)
    return N_THREADS * N_ASKED


def _at_once(work: Callable[[int], None]) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        with ThreadPoolExecutor(N_THREADS) as threads:
            list(threads.map(work, range(N_THREADS)))
    finally:
        sys.setswitchinterval(before)


if __name__ == "__main__":
    sys.exit(run_tries(__doc__, "engine_threads", 10_000, ask_at_once))
