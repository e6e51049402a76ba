"""How much of a prompt shares a pass with texts that are being written."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import pytest

from edgedec.models.graph import Capabilities
from edgedec.runtime.engine.pass_policy import MAX_ROWS, Waiting, choose
from edgedec.runtime.sequences.pass_times import GAP, LONG_PASS, PassTimes
from edgedec.runtime.sequences.passes import Pass, run_passes
from edgedec.runtime.sequences.pool import SequencePool
from edgedec.runtime.sequences.prefill import PREFILL_CHUNK, feed
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.token_tree import TokenTree

from ..conftest import ToyModel, ToySession

VOCAB = 50


def passes(*sizes: int) -> list[Pass]:
    """Returns passes of as many texts of one model, which may share one."""
    model = ToyModel(VOCAB)
    model.capabilities = Capabilities(n_sequences=8)
    return [
        Pass(ToySession(VOCAB, model=model), TokenTree.chain([1] * size), (size - 1,))
        for size in sizes
    ]


def known_times(writing: list[Pass]) -> PassTimes:
    """Returns the times of a model that takes 10 ms for 4 rows and 1 ms for each of many."""
    times = PassTimes()
    for wanted in writing:
        times.join(wanted.sequence)
        wanted.sequence.written_s = time.perf_counter()
    for _ in range(50):
        times.note(len(writing), 1, 10.0)
        times.note(100, 100, 100.0)
    return times


def test_a_prompt_takes_no_longer_than_a_few_passes_of_those_that_write() -> None:
    writing = passes(1, 1, 1, 1)
    times = known_times(writing)
    reader = ToySession(VOCAB)
    assert times.bound_ms(reader) == GAP * 10.0
    assert times.most_rows([1, 1, 1, 1, 16], MAX_ROWS) == max(2 * LONG_PASS, GAP * 10)
    assert times.most_rows([100, 100], MAX_ROWS) == MAX_ROWS


def test_nobody_waits_for_texts_that_are_over() -> None:
    writing = passes(1, 1)
    times = known_times(writing)
    only = writing[0].sequence
    times.forget(writing[1].sequence)
    assert math.isinf(times.bound_ms(only))  # it does not wait for itself
    times.forget(only)
    assert math.isinf(times.bound_ms(ToySession(VOCAB)))


def test_chunks_are_small_while_others_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool's sequences know of each other; one that was given back writes no more."""
    sizes: list[int] = []
    now_s, model = [100.0], ToyModel(VOCAB)
    compute = model.compute
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])

    def taking_time(wanted: Sequence[Pass]) -> list[Rows]:
        """8 ms, and a quarter of one for each row."""
        sizes.extend(len(one.tree) for one in wanted)
        now_s[0] += 0.008 + 0.00025 * sizes[-1]
        return compute(wanted)

    monkeypatch.setattr(model, "compute", taking_time)
    pool = SequencePool(model, 1000)
    writer, reader = pool.take([]), pool.take([])
    run_passes(feed(writer, [1]))
    sizes.clear()
    run_passes(feed(reader, [2] * 300))
    assert max(sizes) <= 64  # the bound allows 24.75 ms
    pool.give_back(writer)
    sizes.clear()
    run_passes(feed(reader, [3] * 400))
    assert max(sizes) == PREFILL_CHUNK


def test_prompts_share_no_pass_that_others_wait_for() -> None:
    ready = [Waiting(one) for one in passes(1, 16, 1, 16, 1, 100)]
    assert choose(ready, 35) == [0, 1, 2, 3, 4]
    assert choose(ready, 30) == [0, 1, 2, 4]
