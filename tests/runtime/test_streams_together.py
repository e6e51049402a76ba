"""Several streams of one engine at once: each as if it were alone, nothing computed twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import islice

import numpy as np
import pytest

from edgedec.models.errors import SessionError
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.engine.stream import Piece, Stream
from edgedec.runtime.sampling.grammar import Grammars
from edgedec.runtime.sequences import pool
from edgedec.runtime.text.common_prefix import common_prefix

from .conftest import Row, ToyModel
from .engine.test_scheduler import wait_until

MakeEngine = Callable[..., Engine]
PROMPTS = ("The quick brown fox jumps over", "lines and spaces and lines and")
METHODS = ["plain", "lookup", "auto"]
SAMPLINGS = [SamplingConfig(), SamplingConfig(temperature=0.9)]


def looping(prefix: Sequence[int]) -> Row:
    """Returns logits by the last token alone, so that texts repeat themselves."""
    return (6 * np.random.default_rng([3, prefix[-1]]).standard_normal(330)).astype(np.float32)


@pytest.fixture(autouse=True)
def even_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows cost little more, whatever the clock says."""
    monkeypatch.setattr(CostTable, "unknown", lambda: CostTable({1: 100.0, 16: 110.0}))
    monkeypatch.setattr(CostTable, "observe", lambda *_: None)


def toy(engine: Engine) -> ToyModel:
    assert isinstance(engine.model, ToyModel)
    return engine.model


def request(method: str, sampling: SamplingConfig) -> GenerationConfig:
    return GenerationConfig(max_new_tokens=40, method=method, sampling=sampling, seed=3)


def check_each_is_as_alone(
    make_engine: MakeEngine, engine: Engine, config: GenerationConfig, streams: list[Stream]
) -> None:
    """Asserts that the finished ``streams`` are what each gives alone, every pass counted."""
    results = [stream.result for stream in streams]
    for prompt, result in zip(PROMPTS, results, strict=True):
        alone: GenerationResult = make_engine(looping).generate(prompt, config)
        assert (result.token_ids, result.text) == (alone.token_ids, alone.text)
        assert result.finish_reason == "length"
        assert result.stats.n_prefill_tokens == result.n_prompt_tokens
    if config.method != "plain":
        assert all(result.stats.n_accepted > 0 for result in results)
    # One pass for each prompt.
    assert toy(engine).n_passes == sum(1 + result.stats.n_passes for result in results)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("method", METHODS)
def test_streams_iterated_in_turn(
    make_engine: MakeEngine, method: str, sampling: SamplingConfig
) -> None:
    engine, config = make_engine(looping), request(method, sampling)
    streams = [engine.stream(prompt, config) for prompt in PROMPTS]
    while not all(stream.is_finished for stream in streams):
        for stream in streams:
            next(stream, None)
    check_each_is_as_alone(make_engine, engine, config, streams)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("write", [list, Stream.write], ids=["iterated", "written"])
def test_streams_in_two_threads(
    make_engine: MakeEngine, method: str, sampling: SamplingConfig, write: Callable[..., object]
) -> None:
    engine, config = make_engine(looping), request(method, sampling)
    streams = [engine.stream(prompt, config) for prompt in PROMPTS]
    at_once, most = 0, 0

    def enter() -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)

    toy(engine).before_pass = enter
    rows_of = toy(engine).rows_of

    def leave(*arguments: object) -> object:
        nonlocal at_once
        try:
            return rows_of(*arguments)  # type: ignore[arg-type]
        finally:
            at_once -= 1

    toy(engine).rows_of = leave  # type: ignore[method-assign, assignment]
    threads = [threading.Thread(target=write, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert most == 1  # they took turns
    check_each_is_as_alone(make_engine, engine, config, streams)


@pytest.mark.parametrize("n_iterated", [0, 1, 7])
@pytest.mark.parametrize("method", METHODS)
def test_what_is_written_is_what_iterating_gives(
    make_engine: MakeEngine, method: str, n_iterated: int
) -> None:
    config, written = request(method, SAMPLINGS[0]), list[Piece]()
    whole, stream = (make_engine(looping).stream(PROMPTS[0], config) for _ in range(2))
    pieces = list(whole.pieces)
    begun = list(islice(stream.pieces, n_iterated))
    result = stream.write(written.append)
    assert begun + written == pieces
    assert (result.text, result.token_ids) == (whole.result.text, whole.result.token_ids)
    assert stream.write(written.append) is result
    assert begun + written == pieces


def test_an_error_of_who_takes_pieces_ends_the_output_and_nothing_else(
    make_engine: MakeEngine,
) -> None:
    engine, config = make_engine(looping), request("plain", SAMPLINGS[0])
    streams, errors = [engine.stream(prompt, config) for prompt in PROMPTS], list[str]()
    taken: list[Piece] = []

    def take(piece: Piece) -> None:
        taken.append(piece)
        if len(taken) == 3:
            raise ValueError("enough")

    def write_some() -> None:
        try:
            streams[0].write(take)
        except ValueError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=write_some), threading.Thread(target=streams[1].write)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert errors == ["enough"]
    assert streams[0].result.finish_reason == "cancelled"
    assert streams[0].result.text.startswith("".join(piece.text for piece in taken))
    alone = make_engine(looping).generate(PROMPTS[1], config)
    assert streams[1].result.token_ids == alone.token_ids


def test_who_takes_pieces_may_end_the_output(make_engine: MakeEngine) -> None:
    stream, taken = make_engine(looping).stream(PROMPTS[0], max_new_tokens=40), list[str]()

    def take(piece: Piece) -> None:
        taken.append(piece.text)
        if len(taken) == 4:
            stream.stop()

    result = stream.write(take)
    assert result.finish_reason == "cancelled"
    assert result.text == "".join(taken)
    assert len(result.token_ids) < 40


def test_a_stop_and_the_next_piece_at_once_end_a_stream_once(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[GenerationResult] = []
    pieces: list[str] = []
    is_ending, is_asked_for = threading.Event(), threading.Event()
    stream = make_engine(looping).streams.open(
        PROMPTS[0], request("plain", SAMPLINGS[0]), None, lambda result, _: reported.append(result)
    )
    pieces.append(next(stream))
    flush = stream._text.flush

    def flush_slowly() -> str:
        is_ending.set()
        assert is_asked_for.wait(timeout=60)
        return flush()

    monkeypatch.setattr(stream._text, "flush", flush_slowly)
    stopping = threading.Thread(target=stream.stop)
    stopping.start()
    assert is_ending.wait(timeout=60)
    asking = threading.Thread(target=lambda: pieces.extend(stream))
    asking.start()
    asking.join(timeout=0.2)  # it would be through with the stream by now
    is_asked_for.set()
    for thread in (stopping, asking):
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert [result.finish_reason for result in reported] == ["cancelled"]
    assert stream.result is reported[0]
    assert stream.result.text.startswith("".join(pieces))


def test_a_stream_may_be_iterated_by_who_has_the_turn_while_another_ends_it(
    make_engine: MakeEngine,
) -> None:
    engine, config = make_engine(looping), request("plain", SAMPLINGS[0])
    one, two = (engine.stream(prompt, config) for prompt in PROMPTS)
    pieces = [next(two)]
    stopping = threading.Thread(target=two.stop)

    def in_a_pass() -> None:
        toy(engine).before_pass = lambda: None
        stopping.start()
        wait_until(lambda: engine.streams._scheduler._waiting)
        pieces.extend(two)

    toy(engine).before_pass = in_a_pass
    asking = threading.Thread(target=list, args=(one,), daemon=True)
    asking.start()
    asking.join(timeout=60)
    assert not asking.is_alive()
    stopping.join(timeout=60)
    assert two.result.finish_reason == "cancelled"
    assert two.result.text == "".join(pieces)


def test_a_dropped_stream_is_ended_at_the_next_request(make_engine: MakeEngine) -> None:
    engine, config = make_engine(looping), GenerationConfig(max_new_tokens=40)
    stream = engine.stream(PROMPTS[0], config)
    for _ in range(5):
        next(stream)
    text, sequence = list(stream._state.tokens), stream._state.sequence
    n_held = sequence.n_tokens
    del stream
    again = engine.stream(text, config)
    assert again._state.sequence is sequence
    list(again)
    assert again.result.stats.n_reused_tokens == n_held == len(text) - 1
    whole = make_engine(looping).generate(PROMPTS[0], GenerationConfig(max_new_tokens=60))
    assert again.result.token_ids == whole.token_ids[len(text) - whole.n_prompt_tokens :][:40]


def test_a_stream_that_two_threads_begin_to_iterate_at_once_is_one_text(
    make_engine: MakeEngine,
) -> None:
    engine, config = make_engine(looping), GenerationConfig(max_new_tokens=12)
    stream, may_go_on = engine.stream(PROMPTS[0], config), threading.Event()
    refused: list[str] = []

    def begin() -> None:
        try:
            next(stream)
        except SessionError as error:
            refused.append(str(error))

    toy(engine).before_pass = may_go_on.wait
    both = [threading.Thread(target=begin, daemon=True) for _ in range(2)]
    with stream._claims:
        for thread in both:
            thread.start()
        time.sleep(0.1)  # until both want to
    wait_until(lambda: refused)
    may_go_on.set()
    for thread in both:
        thread.join(timeout=60)
    list(stream)
    whole = engine.generate(PROMPTS[0], config)  # not before: its first token would need no pass
    assert refused == ["this stream is being iterated elsewhere; wait for it"]
    assert (stream.result.token_ids, stream.result.text) == (whole.token_ids, whole.text)


@pytest.mark.parametrize("ask", [Engine.stream, Engine.suggest, Engine.borrowed])
def test_prompts_are_not_forgotten_while_another_thread_chooses_among_them(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, ask: Callable[..., object]
) -> None:
    engine = make_engine(looping)
    engine.generate(PROMPTS[0], GenerationConfig(max_new_tokens=3))
    others: list[threading.Thread] = []

    def compared(left: Sequence[int], right: Sequence[int]) -> int:
        n_before = len(left)
        others.append(threading.Thread(target=engine.forget_prompts))
        others[-1].start()
        others[-1].join(0.1)
        assert len(left) == n_before
        return common_prefix(left, right)

    monkeypatch.setattr(pool, "common_prefix", compared)
    asked = ask(engine, engine.encode(PROMPTS[0]))
    if isinstance(asked, AbstractContextManager):
        with asked:
            pass
    for other in others:
        other.join()
    assert others


def test_others_go_on_while_a_grammar_is_compiled(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_compiling, may_end = threading.Event(), threading.Event()

    def compile_long(*_: object) -> None:
        is_compiling.set()
        may_end.wait(60)

    monkeypatch.setattr(Grammars, "mask", compile_long)
    engine = make_engine(looping)
    held = GenerationConfig(max_new_tokens=4, regex="a")
    free = GenerationConfig(max_new_tokens=4)
    threads = [
        threading.Thread(target=engine.generate, args=(prompt, config))
        for prompt, config in zip(PROMPTS, (held, free), strict=True)
    ]
    threads[0].start()
    assert is_compiling.wait(60)
    threads[1].start()
    threads[1].join(30)
    has_ended = not threads[1].is_alive()
    may_end.set()
    for thread in threads:
        thread.join(60)
    assert has_ended
