"""Speculative decoding emits what plain decoding emits, and leaves everything behind rewound."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.models.errors import SessionError
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding.busy_clock import BusyClock
from edgedec.runtime.decoding.planner import (
    FixedPlanner,
    FixedPlanning,
    RoundTimings,
)
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.decoding.verifiers import find_verifier
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt, RoundOutcome
from edgedec.runtime.sampling.sampling import History

from ..conftest import ToySession
from ..draft_toys import (
    PROMPT,
    SAMPLINGS,
    VOCAB,
    Grow,
    StatsSession,
    ToyDrafter,
    ToyMask,
    bush,
    check_sums,
    generate,
    half_right,
    nothing,
    open_stream,
    right,
    wrong,
)

GROWTHS: list[Grow] = [right, wrong, half_right, nothing, bush]


def fixed(*drafters: Any, n_nodes: int = 6, depth: int = 4, verifier: str = "") -> Speculative:
    planner = FixedPlanner(drafters, Budget(n_nodes=n_nodes, depth=depth))
    return Speculative(planner, find_verifier(verifier or "shared-gumbel"))


def check_rewound(session: ToySession, tokens: Sequence[int]) -> None:
    assert list(session.tokens) == list(tokens)[: session.n_tokens]


@pytest.mark.parametrize("grow", GROWTHS)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("session_type", [ToySession, StatsSession])
def test_tokens_equal_plain(
    grow: Grow, sampling: SamplingConfig, is_masked: bool, session_type: type[ToySession]
) -> None:
    config = GenerationConfig(max_new_tokens=40, seed=5, sampling=sampling)
    mask = ToyMask(VOCAB) if is_masked else None
    plain = generate(ToySession(VOCAB), PROMPT, config, mask=mask)
    truth = [*PROMPT, *plain.token_ids]
    drafter, session = ToyDrafter(truth, grow), session_type(VOCAB)
    result = generate(session, PROMPT, config, fixed(drafter), mask)
    assert result.token_ids == plain.token_ids
    assert result.finish_reason == plain.finish_reason
    assert result.text == plain.text
    assert result.lossless
    check_sums(result)
    check_rewound(session, truth)
    assert (drafter.begun, drafter.ended) == ([PROMPT], [truth])
    if grow is right:
        assert result.stats.n_passes == 8  # 39 tokens, five a pass
        assert result.stats.acceptance_rate == 1.0
        assert set(result.origins) == {"target", "toy"}
    if grow in (wrong, nothing):
        assert result.stats.n_passes == plain.stats.n_passes
        assert result.stats.n_accepted == 0
    if grow in (half_right, bush):
        assert result.stats.n_accepted > 0
        # The mask forbids the wrong halves, so they never reach the verifier.
        is_all_kept = result.stats.n_accepted == result.stats.n_proposed
        assert is_all_kept == (is_masked and grow is half_right)
        assert result.stats.n_passes < plain.stats.n_passes


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    sampling=st.sampled_from(SAMPLINGS),
    n_nodes=st.integers(1, 24),
    depth=st.integers(1, 12),
    max_new_tokens=st.integers(1, 30),
    context=st.integers(8, 40),
    is_masked=st.booleans(),
)
def test_any_tree_any_limit(
    seed: int,
    sampling: SamplingConfig,
    n_nodes: int,
    depth: int,
    max_new_tokens: int,
    context: int,
    is_masked: bool,
) -> None:
    config = GenerationConfig(max_new_tokens=max_new_tokens, seed=seed, sampling=sampling)
    mask = ToyMask(VOCAB) if is_masked else None
    plain = generate(ToySession(VOCAB, context), PROMPT, config, mask=mask)
    truth = [*PROMPT, *plain.token_ids]
    drafters = [ToyDrafter(truth, bush, seed), ToyDrafter(truth, half_right, seed)]
    session = ToySession(VOCAB, context)
    result = generate(session, PROMPT, config, fixed(*drafters, n_nodes=n_nodes, depth=depth), mask)
    assert (result.token_ids, result.finish_reason) == (plain.token_ids, plain.finish_reason)
    check_sums(result)
    assert result.stats.n_discarded == 0
    check_rewound(session, truth)
    for outcome in drafters[0].outcomes:
        assert len(outcome.tree) <= n_nodes
        assert outcome.stats.argmax.shape == (len(outcome.tree) + 1,)


@pytest.mark.parametrize("name", ["deterministic", "typical"])
@pytest.mark.parametrize("grow", GROWTHS)
@pytest.mark.parametrize("is_masked", [False, True])
def test_greedy_tokens_equal_plain_with_every_verifier(
    name: str, grow: Grow, is_masked: bool
) -> None:
    config = GenerationConfig(max_new_tokens=40)
    mask = ToyMask(VOCAB) if is_masked else None
    plain = generate(ToySession(VOCAB), PROMPT, config, mask=mask)
    drafter = ToyDrafter([*PROMPT, *plain.token_ids], grow)
    result = generate(StatsSession(VOCAB), PROMPT, config, fixed(drafter, verifier=name), mask)
    assert result.token_ids == plain.token_ids
    assert result.lossless == (name != "typical")
    check_sums(result)


@pytest.mark.parametrize("name", ["deterministic"])
def test_seed_decides_the_text_of_lossless_verifiers(name: str) -> None:
    def run(seed: int) -> tuple[int, ...]:
        sampling = SamplingConfig(temperature=1.0)
        config = GenerationConfig(max_new_tokens=30, seed=seed, sampling=sampling)
        drafter = ToyDrafter(range(60), bush)
        return generate(ToySession(VOCAB), PROMPT, config, fixed(drafter, verifier=name)).token_ids

    assert run(1) == run(1) != run(2)


@pytest.mark.parametrize("sampling", SAMPLINGS[:3], ids=str)
@pytest.mark.parametrize("n_pieces", [1, 2, 3, 4, 9])
def test_stopped_inside_accepted_tokens_and_resumed(
    sampling: SamplingConfig, n_pieces: int
) -> None:
    config = GenerationConfig(max_new_tokens=30, seed=3, sampling=sampling)
    plain = generate(ToySession(VOCAB), PROMPT, config)
    truth = [*PROMPT, *plain.token_ids]
    drafter, session = ToyDrafter(truth, right), ToySession(VOCAB)
    strategy = fixed(drafter)
    stream = open_stream(session, PROMPT, config, strategy)
    for _ in range(n_pieces):
        next(stream)
    stream.stop()
    emitted = list(stream.result.token_ids)
    assert emitted == list(plain.token_ids[:n_pieces])
    assert drafter.ended == [[*PROMPT, *emitted]]
    check_rewound(session, [*PROMPT, *emitted])
    check_sums(stream.result)
    assert stream.result.stats.n_discarded == (1 - n_pieces) % 5 if n_pieces > 1 else True
    # Noise depends on the position, so the rest is the same when the text so far is the prompt.
    rest = generate(session, [*PROMPT, *emitted], config, strategy)
    assert rest.token_ids[: 30 - n_pieces] == plain.token_ids[n_pieces:]
    assert rest.stats.n_reused_tokens >= len(PROMPT) + n_pieces - 1


def test_cancelled_turn_is_dropped() -> None:
    config = GenerationConfig(max_new_tokens=30)
    plain = generate(ToySession(VOCAB), PROMPT, config)
    drafter, session = ToyDrafter([*PROMPT, *plain.token_ids], right), ToySession(VOCAB)
    stream = open_stream(session, PROMPT, config, fixed(drafter))
    next(stream)
    next(stream)
    stream.cancel()
    assert session.n_tokens == 0
    assert len(drafter.ended) == 1


@pytest.mark.parametrize("grow", [right, half_right, bush])
@pytest.mark.parametrize("i_token", range(1, 12))
def test_stop_token_and_stop_text_inside_accepted_tokens(grow: Grow, i_token: int) -> None:
    free = generate(ToySession(VOCAB), PROMPT, GenerationConfig(max_new_tokens=40))
    truth, last = [*PROMPT, *free.token_ids], free.token_ids[i_token]
    for config in (
        GenerationConfig(max_new_tokens=40, stop_token_ids=(last,)),
        GenerationConfig(max_new_tokens=40, stop=(f"{free.token_ids[i_token - 1]} {last} ",)),
    ):
        plain = generate(ToySession(VOCAB), PROMPT, config)
        drafter, session = ToyDrafter(truth, grow), ToySession(VOCAB)
        result = generate(session, PROMPT, config, fixed(drafter))
        assert (result.token_ids, result.text) == (plain.token_ids, plain.text)
        assert result.finish_reason == plain.finish_reason == "stop"
        check_sums(result)
        check_rewound(session, [*PROMPT, *result.token_ids])
        assert drafter.ended == [[*PROMPT, *result.token_ids]]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SessionError])
@pytest.mark.parametrize("i_pass", [1, 2, 3])
def test_interrupted_pass_leaves_everything_usable(error: type[BaseException], i_pass: int) -> None:
    config = GenerationConfig(max_new_tokens=30)
    plain = generate(ToySession(VOCAB), PROMPT, config)
    truth = [*PROMPT, *plain.token_ids]
    drafter, session = ToyDrafter(truth, right), ToySession(VOCAB)
    strategy = fixed(drafter)

    def interrupt() -> None:
        if session.n_passes == i_pass:
            raise error

    session.before_pass = interrupt
    stream = open_stream(session, PROMPT, config, strategy)
    with pytest.raises(error):
        list(stream)
    session.before_pass = lambda: None
    assert stream.result.token_ids == plain.token_ids[: 1 + 5 * (i_pass - 1)]
    check_sums(stream.result)
    check_rewound(session, truth)
    assert drafter.ended == [[*PROMPT, *stream.result.token_ids]]
    assert generate(session, PROMPT, config, strategy).token_ids == plain.token_ids


@pytest.mark.parametrize("call", ["begin", "propose", "observe", "end"])
@pytest.mark.parametrize("error", [RuntimeError("broken"), MemoryError("full")])
def test_failing_drafter_is_switched_off(
    call: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    config = GenerationConfig(max_new_tokens=30)
    plain = generate(ToySession(VOCAB), PROMPT, config)
    drafter = ToyDrafter([*PROMPT, *plain.token_ids], right)

    def fail(*arguments: Any) -> None:
        raise error

    setattr(drafter, call, fail)
    other = ToyDrafter([*PROMPT, *plain.token_ids], half_right)
    other.name = "other"
    with caplog.at_level(logging.WARNING):
        result = generate(ToySession(VOCAB), PROMPT, config, fixed(drafter, other))
    assert result.token_ids == plain.token_ids
    assert result.stats.failed_drafters == {"toy": f"{type(error).__name__}: {error}"}
    assert result.stats.n_accepted > 0
    assert "drafter toy is switched off" in caplog.text
    check_sums(result)


def test_interrupt_in_a_drafter_ends_the_stream_and_spares_the_drafter() -> None:
    config = GenerationConfig(max_new_tokens=30)
    plain = generate(ToySession(VOCAB), PROMPT, config)
    drafter = ToyDrafter([*PROMPT, *plain.token_ids], right)
    strategy, propose = fixed(drafter), drafter.propose

    def interrupt(context: DraftContext, budget: Budget) -> DraftTree:
        raise KeyboardInterrupt

    drafter.propose = interrupt  # type: ignore[method-assign]
    stream = open_stream(ToySession(VOCAB), PROMPT, config, strategy)
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    drafter.propose = propose  # type: ignore[method-assign]
    result = generate(ToySession(VOCAB), PROMPT, config, strategy)
    assert result.token_ids == plain.token_ids
    assert result.stats.n_accepted > 0
    assert result.stats.failed_drafters == {}


def test_first_token_is_observed_and_history_stays_sequential() -> None:
    sampling = SamplingConfig(temperature=1.0, repetition_penalty=1.2, frequency_penalty=0.3)
    config = GenerationConfig(max_new_tokens=25, sampling=sampling)
    truth = [*PROMPT, *generate(ToySession(VOCAB), PROMPT, config).token_ids]
    drafter, session = ToyDrafter(truth, bush), ToySession(VOCAB)
    stream = open_stream(session, PROMPT, config, fixed(drafter))
    for _ in stream:
        state, replayed = stream._state, History(PROMPT)
        for token in state.tokens[len(PROMPT) :]:
            replayed.add(token)
        assert vars(state.history) == vars(replayed)
    first, *others = drafter.outcomes
    assert (len(first.tree), first.emitted) == (0, (truth[len(PROMPT)],))
    assert first.stats.argmax.shape == (1,)
    emitted = [token for outcome in (first, *others) for token in outcome.emitted]
    assert emitted == truth[len(PROMPT) :]


def test_pieces_tell_where_tokens_came_from() -> None:
    config = GenerationConfig(max_new_tokens=6)
    plain = generate(ToySession(VOCAB), PROMPT, config)
    drafter = ToyDrafter([*PROMPT, *plain.token_ids], right)
    stream = open_stream(ToySession(VOCAB), PROMPT, config, fixed(drafter))
    pieces = list(stream.pieces)
    assert "".join(piece.text for piece in pieces) == plain.text
    assert all(plain.text[piece.position :].startswith(piece.text) for piece in pieces)
    assert tuple(piece.origin for piece in pieces) == stream.result.origins
    assert stream.result.origins == ("target", "toy", "toy", "toy", "toy", "target")
    assert stream.result.to_dict()["origins"] == list(stream.result.origins)


class Ticking(BusyClock):
    """Reads 0, 1, 3, 6, 10 ... ms: each reading is a millisecond later after the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.n_read = 0

    def now_s(self) -> float:
        self.n_read += 1
        return self.n_read * (self.n_read - 1) / 2000


def test_what_rounds_take_is_reported_the_planner_and_summed() -> None:
    """A round reads the clock three times: at first, before its pass, and once it has its rows."""
    seen: list[RoundTimings | None] = []

    class Listening(FixedPlanning):
        def observe(
            self, context: DraftContext, outcome: RoundOutcome, timings: RoundTimings | None
        ) -> None:
            seen.append(timings)
            super().observe(context, outcome, timings)

    class Planner(FixedPlanner):
        def begin(self, prompt: DraftPrompt, *args: Any) -> FixedPlanning:
            return Listening(self._drafters.begin(prompt), self._budget, self.name)

    strategy = Speculative(Planner([ToyDrafter([], nothing)], Budget(6, 4)))
    stream = open_stream(ToySession(VOCAB), PROMPT, GenerationConfig(max_new_tokens=4), strategy)
    stream._state.clock = Ticking()
    list(stream)
    first, *rounds = seen
    assert first is None, "the prompt's pass gave that token"
    assert [(t.draft_ms, t.verify_ms) for t in rounds if t is not None] == [
        pytest.approx((n, n + 1)) for n in (1, 4, 7)
    ]
    stats = stream.result.stats
    assert (stats.draft_ms, stats.verify_ms) == pytest.approx((1 + 4 + 7, 2 + 5 + 8))


def test_closing_reaches_the_drafters() -> None:
    drafter = ToyDrafter([], nothing)
    fixed(drafter).close()
    assert drafter.is_closed


def test_broken_statistics_are_an_error() -> None:
    def rule(prefix: Sequence[int]) -> Any:
        return np.full(VOCAB, np.nan, np.float32)

    with (
        np.errstate(invalid="ignore"),
        pytest.raises(SessionError, match="expected a number"),
    ):
        generate(StatsSession(VOCAB, 64, rule), PROMPT, GenerationConfig())
