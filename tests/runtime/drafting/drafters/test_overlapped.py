"""Drafting on while the target model verifies: what is computed, kept, counted, and what fails."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding.auto_planner import AutoPlanner, AutoPlanning
from edgedec.runtime.decoding.cost_book import CostBook
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.decoding.planner import FixedPlanner
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.drafting.core_split import CoreSplit
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftPrompt
from edgedec.runtime.drafting.drafters.draft import overlapped
from edgedec.runtime.drafting.drafters.draft.overlapped import OverlapGauge
from edgedec.runtime.drafting.drafters.draft.tree_drafting import MAX_AHEAD
from edgedec.runtime.sequences.affinity import Affinity
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.sequence import TokenSequence

from ...conftest import ToySession
from ...draft_toys import (
    PROMPT,
    SAMPLINGS,
    VOCAB,
    ToyMask,
    check_sums,
    generate,
    open_stream,
)
from .overlap_toys import (
    BUDGET,
    LONG,
    NOW,
    PAIRS,
    DraftSession,
    Inline,
    Pair,
    Placed,
    Rule,
    WatchedDrafter,
    certain,
    drafting_over,
    model_over,
    mostly,
    sure,
    wait_for,
)
from .rounds import context_of, outcome_of, paths_of
from .watched_session import propose


def best_path(tree: DraftTree) -> list[int]:
    return [node.token for node in tree.likeliest_chain().nodes]


class ToyCosts(CostBook):
    """Known costs, whatever the clock says."""

    def __init__(self, tables: dict[str, CostTable]) -> None:
        super().__init__()
        self._tables = tables


class UntimedPlanner(AutoPlanner):
    """Waiting for the other thread costs nothing, however busy the machine is."""

    def begin(
        self, prompt: DraftPrompt, target: TokenSequence, clock: Callable[[], float] = lambda: 0.0
    ) -> AutoPlanning:
        return super().begin(prompt, target, clock)


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlapped, "ThreadPoolExecutor", Inline)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    while PAIRS:
        PAIRS.pop().strategy.close()
    assert not any(thread.name.startswith("edgedec-draft") for thread in threading.enumerate())


@pytest.mark.parametrize("rule", [sure, mostly, None])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("is_masked", [False, True])
def test_tokens_equal_plain(rule: Rule | None, sampling: SamplingConfig, is_masked: bool) -> None:
    config = GenerationConfig(max_new_tokens=40, seed=5, sampling=sampling)
    plain = generate(
        ToySession(VOCAB, rule=sure), PROMPT, config, mask=ToyMask(VOCAB) if is_masked else None
    )
    pair = Pair(rule or (lambda prefix: sure(prefix)[::-1].copy()))
    wait_for(pair, 3)
    result = pair.run(config, ToyMask(VOCAB) if is_masked else None)
    assert result.token_ids == plain.token_ids
    assert result.lossless
    check_sums(result)
    assert pair.draft.n_early_passes >= result.stats.n_early > 0
    assert 0 <= result.stats.n_early_used <= result.stats.n_early
    pair.check_rewound(result.token_ids)
    pair.strategy.close()
    assert not pair.draft.is_closed  # the model is its role's


@pytest.mark.parametrize("context", [10, 17, 30])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 50])
def test_at_the_end_of_the_context_or_the_output(context: int, n: int) -> None:
    config = GenerationConfig(max_new_tokens=n)
    plain = generate(ToySession(VOCAB, context, sure), PROMPT, config)
    pair = Pair(context=context)
    wait_for(pair, MAX_AHEAD)
    result = pair.run(config)
    assert (result.token_ids, result.finish_reason) == (plain.token_ids, plain.finish_reason)
    check_sums(result)
    assert not result.stats.failed_drafters


@pytest.mark.usefixtures("inline")
def test_a_draft_model_that_is_right_is_never_waited_for() -> None:
    """Every round after the first two finds its drafts there; all it drafted early is of use."""
    pair = Pair(sure)
    costs: list[int] = []
    pair.target.before_pass = lambda: costs.append(pair.drafter.n_passes)
    result = pair.run()
    assert max(costs[2:]) == 0
    stats = result.stats
    assert stats.n_correction == 0
    assert stats.n_passes < 60 / 4
    assert stats.n_early - stats.n_early_used <= MAX_AHEAD
    alone = Pair(sure)
    alone.drafter.gauge.is_on = False
    assert alone.run().stats.n_early == 0


@pytest.mark.usefixtures("inline")
def test_trees_and_counts_repeat() -> None:
    first, second = Pair().run(), Pair().run()
    assert first.stats.n_early > first.stats.n_early_used > 0
    # All but the times.
    timed = ("draft_ms", "verify_ms")
    counted = [
        {k: v for k, v in r.stats.to_dict().items() if k not in timed} for r in (first, second)
    ]
    assert counted[0] == counted[1]
    assert first.stats.to_dict()["n_early_used"] == first.stats.n_early_used


def counted(n: int) -> Callable[[], bool]:
    """Returns what says that it is over when asked for the time after ``n``."""
    answers = iter([False] * n)
    return lambda: next(answers, True)


@pytest.mark.parametrize("n_asked", [0, 1, 2, 3, 30])
def test_it_goes_on_below_the_likeliest_path(n_asked: int) -> None:
    session = DraftSession()
    drafting, context = drafting_over(session), context_of(PROMPT)
    tree = propose(drafting, context, Budget(n_nodes=3, depth=3))
    path, cost = best_path(tree), drafting.passes.cost
    n_before = len(session.computed)
    run_passes(drafting.draft_ahead(context, path, counted(n_asked)))
    assert drafting.passes.cost is cost
    chain = [*PROMPT, *session.plain(PROMPT, 20)]
    ahead = session.computed[n_before:]
    start = len(PROMPT) + len(path)
    assert ahead == [tuple(chain[: start + i]) for i in range(len(ahead))]
    assert len(ahead) <= min(n_asked, MAX_AHEAD)
    assert len(ahead) == drafting.passes.early.n_drafted
    if n_asked > 1:
        assert len(ahead) >= 1
    if n_asked == 30:
        assert len(ahead) == MAX_AHEAD
    assert list(session.tokens) == PROMPT  # nothing is committed before it is accepted


def test_what_comes_true_is_proposed_without_a_pass() -> None:
    session = DraftSession(certain)
    drafting, context = drafting_over(session), context_of(PROMPT)
    path = best_path(propose(drafting, context, Budget(n_nodes=3, depth=3)))
    run_passes(drafting.draft_ahead(context, path, lambda: False))
    n_before = len(session.computed)
    coming = session.plain(PROMPT, len(path) + 1)
    assert coming[:-1] == path
    text = [*PROMPT, *coming]
    context = dataclasses.replace(context, tokens=text)
    tree = propose(drafting, context, NOW)
    assert len(session.computed) == n_before
    assert best_path(tree) == session.plain(text, len(best_path(tree)))
    assert len(best_path(tree)) == 5
    assert drafting.passes.early.n_used == drafting.passes.early.n_drafted == MAX_AHEAD
    # Rows below the text were not kept; going on computes them again, in the same pass.
    run_passes(drafting.draft_ahead(context, best_path(tree), counted(30)))
    again = session.computed[n_before:]
    assert len(set(again)) == len(again)
    assert all(row[: len(text)] == tuple(text) for row in again)
    assert drafting.passes.early.n_drafted > MAX_AHEAD


@pytest.mark.parametrize("n_kept", [0, 1, 2])
def test_what_does_not_is_forgotten(n_kept: int) -> None:
    """The next tree is that of a drafter which never drafted ahead."""
    trees = []
    for is_ahead in (True, False):
        session = DraftSession()
        drafting, context = drafting_over(session), context_of(PROMPT)
        path = best_path(propose(drafting, context, Budget(n_nodes=3, depth=3)))
        if is_ahead:
            run_passes(drafting.draft_ahead(context, path, lambda: False))
        text = [*PROMPT, *path[:n_kept], 59 - path[n_kept]]
        trees.append(paths_of(propose(drafting, context_of(text), BUDGET)))
        assert list(session.tokens) == text
        assert drafting.passes.early.n_drafted == (MAX_AHEAD if is_ahead else 0)
        assert drafting.passes.early.n_used == 0
    assert trees[0] == trees[1]


def test_nothing_is_drafted_below_tokens_of_others_or_another_text() -> None:
    session = DraftSession()
    drafting, context = drafting_over(session), context_of(PROMPT)
    tree = propose(drafting, context, Budget(n_nodes=3, depth=3))
    path, n_before = best_path(tree), len(session.computed)
    unlikely = int(sure([*PROMPT, path[0]]).argmin())
    other = context_of([*PROMPT, path[0]])
    run_passes(drafting.draft_ahead(context, [path[0], unlikely], lambda: False))
    run_passes(drafting.draft_ahead(other, path[1:], lambda: False))
    drafting.observe(context, outcome_of(tree, [path[0], 1]))
    run_passes(drafting.draft_ahead(context, path, lambda: False))  # the round is over
    assert len(session.computed) == n_before


@pytest.mark.parametrize("failure", [RuntimeError("no"), MemoryError("none left")], ids=repr)
@pytest.mark.parametrize("n_good", [0, 2])
def test_a_fault_in_the_thread_switches_the_drafter_off(
    failure: Exception, n_good: int, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair()
    wait_for(pair, 1)

    def fail_later() -> None:
        if pair.draft.n_early_passes >= n_good:
            pair.draft.failure = failure

    pair.draft.before_pass = fail_later
    if n_good == 0:
        pair.draft.failure = failure
    plain = generate(ToySession(VOCAB, rule=sure), PROMPT, LONG)
    with caplog.at_level(logging.WARNING):
        result = pair.run()
    assert result.token_ids == plain.token_ids
    reason = f"{type(failure).__name__}: {failure}"
    assert result.stats.failed_drafters == {"draft": reason}
    assert [r.getMessage() for r in caplog.records] == [f"drafter draft is switched off: {reason}"]
    check_sums(result)
    again = pair.run()
    assert again.token_ids == plain.token_ids
    assert again.stats.n_early == 0
    pair.strategy.close()


def test_no_memory_for_a_thread_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise MemoryError("no thread")

    monkeypatch.setattr(overlapped, "ThreadPoolExecutor", refuse)
    result = Pair().run()
    assert result.token_ids == generate(ToySession(VOCAB, rule=sure), PROMPT, LONG).token_ids
    assert result.stats.failed_drafters == {"draft": "MemoryError: no thread"}


@pytest.mark.parametrize("n_pieces", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("is_dropped", [False, True])
def test_stopped_and_resumed(n_pieces: int, is_dropped: bool) -> None:
    plain = generate(ToySession(VOCAB, rule=sure), PROMPT, LONG)
    pair = Pair()
    wait_for(pair, 2)
    stream = open_stream(pair.target, PROMPT, LONG, pair.strategy)
    for _ in range(n_pieces):
        next(stream)
    stream.cancel() if is_dropped else stream.stop()
    assert pair.drafter.running is None
    assert stream.result.token_ids == plain.token_ids[:n_pieces]
    assert stream.result.stats.n_early_used <= stream.result.stats.n_early
    pair.check_rewound(stream.result.token_ids)
    assert (pair.target.n_tokens == 0) == is_dropped
    assert pair.run().token_ids == plain.token_ids


@pytest.mark.parametrize("i_pass", [2, 3, 6])
def test_an_interrupt_in_the_target_pass_waits_for_the_thread(i_pass: int) -> None:
    plain = generate(ToySession(VOCAB, rule=sure), PROMPT, LONG)
    pair = Pair()
    stream = open_stream(pair.target, PROMPT, LONG, pair.strategy)

    def interrupt() -> None:
        if pair.target.n_passes == i_pass:
            raise KeyboardInterrupt

    pair.target.before_pass = interrupt
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    assert pair.drafter.running is None
    assert 0 < len(stream.result.token_ids) < 60
    assert stream.result.token_ids == plain.token_ids[: len(stream.result.token_ids)]
    pair.check_rewound(stream.result.token_ids)
    pair.target.before_pass = lambda: None
    assert pair.run().token_ids == plain.token_ids


def test_close_ends_the_thread() -> None:
    before = set(threading.enumerate())
    pair = Pair()
    pair.run()
    assert set(threading.enumerate()) - before
    pair.strategy.close()
    assert set(threading.enumerate()) <= before


@pytest.mark.usefixtures("inline")
def test_the_models_are_apart_only_while_both_compute() -> None:
    target, draft = Placed(), Placed(mostly)
    split = CoreSplit(Affinity((0, 1, 2)), Affinity((3,)), reason="")
    drafter = WatchedDrafter(model_over(draft), split)
    strategy = Speculative(FixedPlanner([], BUDGET, model=drafter))
    result = generate(target, PROMPT, LONG, strategy)
    assert set(target.seen) == {None, split.target}
    assert target.seen[0] is None  # the prompt's
    assert target.seen.count(split.target) == drafter.n_overlapped > 5
    assert draft.seen.count(split.draft) >= result.stats.n_early
    assert target.cores is draft.cores is None


def test_it_goes_off_when_it_does_not_pay_and_is_tried_again() -> None:
    for with_it, without in ((2.0, 1.0), (1.0, 2.0)):
        gauge = OverlapGauge()
        history = []
        for _ in range(3 * (32 + 256)):
            history.append(gauge.is_on)
            gauge.observe(10, 10 / (with_it if gauge.is_on else without))
        period = history[: 32 + 256]
        assert history == 3 * period
        assert [period[i] for i in range(0, 32, 8)] == [True, False, True, False]
        assert set(period[32:]) == {with_it > without}
    forced = OverlapGauge(is_measured=False)
    for _ in range(600):
        forced.observe(1, 1000.0 if forced.is_on else 1.0)
        assert forced.is_on


def test_first_rounds_of_a_block_decide_nothing() -> None:
    gauge, was_on = OverlapGauge(), False
    for _ in range(33):
        is_first, was_on = gauge.is_on != was_on, gauge.is_on
        gauge.observe(1, 1000.0 if is_first and gauge.is_on else 1.0 if gauge.is_on else 2.0)
    assert gauge.is_on


@pytest.mark.usefixtures("inline")
def test_explanations_say_what_became_of_it() -> None:
    pair = Pair()
    stream = open_stream(pair.target, PROMPT, LONG, pair.strategy)
    list(stream)
    line, stats = stream.explain()[-1], stream.result.stats
    n_rounds = pair.drafter.n_overlapped
    assert 5 < n_rounds < stats.n_passes
    assert line.startswith(f"overlap: {n_rounds} rounds with, ")
    assert f"{stats.n_early} tokens drafted early, {stats.n_early_used} used" in line
    assert f"{stats.n_early - stats.n_early_used} thrown away" in line
    without = Speculative(FixedPlanner([], BUDGET), no_overlap="2 cores to divide")
    stream = open_stream(pair.target, PROMPT, LONG, without)
    next(stream)
    assert stream.explain()[-1] == "overlap: off, 2 cores to divide"


def test_under_auto() -> None:
    pair = Pair(sure)
    wait_for(pair, 3)
    costs = CostTable({1: 10.0, 2: 10.5, 4: 11.0, 8: 14.0, 16: 23.0})
    book = ToyCosts({"target": costs, "draft": CostTable({1: 2.0, 16: 4.0})})
    pair.strategy = Speculative(UntimedPlanner([], book, {"draft": pair.drafter}))
    result = pair.run()
    assert result.token_ids == generate(ToySession(VOCAB, rule=sure), PROMPT, LONG).token_ids
    assert result.stats.n_early_used > 0
    check_sums(result)
