"""Prompts that a smaller model reads first: the text is that of plain decoding, or labelled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from edgedec import kernels
from edgedec.labs.prefill.auxiliary import AuxiliaryModel
from edgedec.models.kv_maps import N_SINKS
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding.plain import Plain
from edgedec.runtime.decoding.progressive import N_COMPUTED, PROVISIONAL_TOKENS
from edgedec.runtime.decoding.strategy import DecodeState, DecodingStrategy
from edgedec.runtime.engine.request import Request
from edgedec.runtime.engine.scheduler import Scheduler
from edgedec.runtime.engine.stream import Stream
from edgedec.runtime.sequences.pool import SequencePool
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.text.text_stream import TextStream

from ..runtime.conftest import OnePool
from ..runtime.decoding.test_speculative import fixed
from ..runtime.draft_toys import SAMPLINGS, Numerals, ToyDrafter, check_sums, right
from ..runtime.mapped_pair import CONTEXT, PROMPT, VOCAB, Pair, read


class Misled:
    """Predicts whatever, so that provisional tokens do not hold."""

    depth = 0

    def __init__(self, maps: Any) -> None:
        self._maps = maps
        self.hidden_size = maps.hidden_size

    def write(self, cache: Any, start: int, hidden: Any) -> None:
        self._maps.write(cache, start, np.repeat(hidden[:1] * 0, len(hidden), axis=0))


class Reading:
    """The second model of a pair answers, the first reads for it."""

    def __init__(self, pair: Pair, maps: Any) -> None:
        self.pair = pair
        self.pool = SequencePool(pair.models[0], CONTEXT)
        self.auxiliary = AuxiliaryModel(self.pool, pair.configs[0], maps)

    def stream(
        self,
        sequence: TokenSequence,
        config: GenerationConfig,
        prompt: list[int] = PROMPT,
        strategy: DecodingStrategy | None = None,
        on_progress: Callable[[str, int, int], None] | None = None,
    ) -> Stream:
        state = DecodeState.start(sequence, prompt, config, frozenset(config.stop_token_ids))
        request = Request(
            strategy or Plain(), time.perf_counter(), 0.0, OnePool(sequence), Scheduler(),
            new_text=lambda: TextStream(Numerals(), ()), predictor=lambda: self.auxiliary,
            on_progress=on_progress,
        )  # fmt: skip
        return Stream(request, state, TextStream(Numerals(), ()))

    def run(self, mode: str, prompt: list[int] = PROMPT, **asked: Any) -> Any:
        config = GenerationConfig(**{"max_new_tokens": 16, **asked}, prefill=mode)
        stream = self.stream(self.pair.sequence(1), config, prompt)
        list(stream.pieces)
        return stream.result


@pytest.fixture(scope="module", params=["float16", "int8"])
def pair(
    request: pytest.FixtureRequest, make_source: Any, tmp_path_factory: pytest.TempPathFactory
) -> Pair:
    """A model of two layers that reads for one of four."""
    if not kernels.has_library():
        pytest.skip("the kernel library is not built")
    sources = [make_source(max_positions=CONTEXT, n_layers=n) for n in (2, 4)]
    return Pair(tmp_path_factory.mktemp("pair"), sources, request.param)


@pytest.fixture(params=["maps", "misled"])
def reading(request: pytest.FixtureRequest, pair: Pair) -> Iterator[Reading]:
    return Reading(pair, pair.maps if request.param == "maps" else Misled(pair.maps))


@pytest.mark.parametrize("sampling", SAMPLINGS[:5], ids=str)
def test_the_text_is_that_of_an_exact_prefill(reading: Reading, sampling: SamplingConfig) -> None:
    exact = reading.run("exact", sampling=sampling, seed=3)
    found = reading.run("progressive", sampling=sampling, seed=3)
    assert (found.token_ids, found.lossless) == (exact.token_ids, True)
    assert found.stats.n_provisional == PROVISIONAL_TOKENS
    assert found.stats.n_prefill_tokens == len(PROMPT)
    assert 0 < found.provisional_ms < found.ttft_ms
    check_sums(found)


def test_some_provisional_tokens_hold_and_some_do_not(pair: Pair) -> None:
    """Otherwise the tests here would see one way only."""
    counts = [
        Reading(pair, maps).run("progressive", sampling=SAMPLINGS[1], seed=i).stats.n_confirmed
        for maps in (pair.maps, Misled(pair.maps))
        for i in range(3)
    ]
    assert max(counts) > 2
    assert min(counts) < PROVISIONAL_TOKENS


@pytest.mark.parametrize("n_pieces", [0, 1, 4, 8, 9, 11])
@pytest.mark.parametrize("end", ["stop", "cancel"])
def test_ended_at_any_moment_nothing_predicted_is_left(
    reading: Reading, n_pieces: int, end: str
) -> None:
    sequence = reading.pair.sequence(1)
    stream = reading.stream(sequence, GenerationConfig(max_new_tokens=16, prefill="progressive"))
    pieces = stream.pieces
    for _ in range(n_pieces):
        next(pieces)
    getattr(stream, end)()
    exact = reading.run("exact")
    assert stream.result.token_ids == exact.token_ids[: stream.result.n_new_tokens]
    assert sequence.n_exact == sequence.n_tokens
    fresh = read(reading.pair.sequence(1), list(sequence.tokens)) if sequence.n_tokens else sequence
    for name, rows in sequence.snapshot().kv_rows.items():
        np.testing.assert_array_equal(rows, fresh.snapshot().kv_rows[name])


@pytest.mark.parametrize("n_reports", [1, 2])
@pytest.mark.parametrize("mode", ["progressive", "predicted"])
def test_cancelled_in_the_middle_of_a_step_nothing_predicted_is_left(
    reading: Reading, mode: str, n_reports: int
) -> None:
    sequence, reports = reading.pair.sequence(1), list[int]()

    def on_progress(what: str, n_done: int, n_all: int) -> None:
        reports.append(n_done)
        if len(reports) == n_reports:
            stream.cancel()

    config = GenerationConfig(max_new_tokens=16, prefill=mode)
    stream = reading.stream(sequence, config, on_progress=on_progress)
    list(stream.pieces)
    assert len(reports) >= n_reports
    assert stream.result.finish_reason == "cancelled"
    assert sequence.n_exact == sequence.n_tokens <= len(PROMPT)
    fresh = read(reading.pair.sequence(1), list(sequence.tokens)) if sequence.n_tokens else sequence
    for name, rows in sequence.snapshot().kv_rows.items():
        np.testing.assert_array_equal(rows, fresh.snapshot().kv_rows[name])


def test_speculation_goes_on_from_there(reading: Reading) -> None:
    exact = reading.run("exact")
    drafter = ToyDrafter([*PROMPT, *exact.token_ids], right)
    config = GenerationConfig(max_new_tokens=16, prefill="progressive")
    stream = reading.stream(reading.pair.sequence(1), config, PROMPT, fixed(drafter))
    list(stream)
    assert stream.result.token_ids == exact.token_ids
    check_sums(stream.result)


def test_predicted_rows_stay_with_their_request(reading: Reading) -> None:
    sequence = reading.pair.sequence(1)
    stream = reading.stream(sequence, GenerationConfig(max_new_tokens=8, prefill="predicted"))
    next(stream)
    assert (sequence.n_exact, sequence.n_tokens) == (N_SINKS, len(PROMPT))
    list(stream)
    assert not stream.result.lossless
    assert sequence.n_tokens == sequence.n_exact == N_SINKS
    assert stream.result.stats.n_prefill_tokens == len(PROMPT)
    check_sums(stream.result)


def test_what_both_models_know_is_not_read_again(reading: Reading) -> None:
    sequence = reading.pair.sequence(1)
    first = GenerationConfig(max_new_tokens=1, prefill="exact")
    list(reading.stream(sequence, first, PROMPT[:120]))
    read(reading.pool.take_idle(), PROMPT[:90])
    config = GenerationConfig(max_new_tokens=16, prefill="progressive")
    stream = reading.stream(sequence, config)
    list(stream)
    assert stream.result.token_ids == reading.run("exact").token_ids
    assert stream.result.stats.n_reused_tokens == 120
    assert stream.result.stats.n_prefill_tokens == len(PROMPT) - 120


@pytest.mark.parametrize("n_left", [1, 2, 5])
def test_a_context_that_is_full_soon(reading: Reading, n_left: int) -> None:
    rng = np.random.default_rng(2)
    prompt = [int(t) for t in rng.integers(0, VOCAB, CONTEXT + 1 - n_left)]
    exact, found = (reading.run(mode, prompt) for mode in ("exact", "progressive"))
    assert (found.token_ids, found.finish_reason) == (exact.token_ids, "context")
    assert found.stats.n_provisional <= n_left - 1
    check_sums(found)


@pytest.mark.parametrize("mode", ["progressive", "predicted"])
def test_prompts_shorter_than_sinks_and_end_are_read_at_once(pair: Pair, mode: str) -> None:
    for n_tokens in (1, N_SINKS, N_SINKS + N_COMPUTED):
        found = Reading(pair, pair.maps).run(mode, PROMPT[:n_tokens])
        assert found.lossless
        assert found.stats.n_provisional == 0
    assert (
        not Reading(pair, pair.maps).run("predicted", PROMPT[: N_SINKS + N_COMPUTED + 1]).lossless
    )
