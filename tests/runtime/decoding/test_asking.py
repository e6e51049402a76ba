"""Free drafters that take time, by a clock that only they move."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding.asking import AskingCost
from edgedec.runtime.decoding.auto_planner import MTP, AutoPlanner
from edgedec.runtime.decoding.busy_clock import BusyClock
from edgedec.runtime.decoding.planner import Planning, RoundTimings
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, RoundOutcome
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.row_stats import RowStats

from ..conftest import ToySession
from ..draft_toys import (
    PROMPT,
    SAMPLINGS,
    VOCAB,
    ToyDrafter,
    ToyMask,
    check_sums,
    generate,
    open_stream,
    wrong,
)
from .oracles import FLAT, TEXT, KnownCosts, Oracle, begin, play


class Slow(Oracle):
    """Takes its time, half of it to propose and half to learn."""

    def __init__(self, right: float, claimed: float, ms: float, name: str = "slow") -> None:
        super().__init__(right, claimed, 2, name)
        self.ms = ms
        self.now_s = 0.0

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        self.now_s += self.ms / 2000
        return super().propose(context, budget)

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        self.now_s += self.ms / 2000


def slow_planning(*drafters: Slow) -> Planning:
    def now_s() -> float:
        return sum(drafter.now_s for drafter in drafters)

    return begin(AutoPlanner(drafters, KnownCosts(FLAT)), now_s)


@pytest.mark.parametrize(("ms", "longest"), [(0.2, 4), (1.0, 20), (4.0, 80), (40.0, 128)])
def test_what_costs_more_than_it_saves_is_asked_at_a_bounded_price(ms: float, longest: int) -> None:
    """Of passes of 10 ms a try may cost 0.5 % in the long run: one in 4 rounds if it takes 0.2."""
    drafter = Slow(0.0, 0.9, ms)
    play(slow_planning(drafter), FLAT, 400)
    assert 6 < drafter.n_asked <= 6 + 7 + 2 * 400 / (longest + 1)


@pytest.mark.parametrize("ms", [0.0, 1.0, 8.0])
def test_what_saves_more_than_it_costs_is_asked_every_round(ms: float) -> None:
    """Two tokens for one further pass of 0.75 ms save 19 ms."""
    drafter = Slow(1.0, 0.9, ms)
    sizes, _ = play(slow_planning(drafter), FLAT, 100)
    assert drafter.n_asked == 100
    assert min(sizes) == 2


def test_who_asks_for_little_may_lose_a_pass_before_the_first_rest() -> None:
    planning = slow_planning(Slow(0.0, 0.9, 0.1))
    for _ in range(30):
        play(planning, FLAT, 1)
        assert not planning.is_resting


def test_a_drafter_that_becomes_worth_its_time_is_found_again() -> None:
    drafter = Slow(0.0, 0.9, 2.0)
    planning = slow_planning(drafter)
    play(planning, FLAT, 200)
    drafter.right = 1.0
    sizes, _ = play(planning, FLAT, 100)
    assert sizes[-40:] == [2] * 40


def test_only_those_rest_that_are_not_worth_their_time() -> None:
    dear, cheap = Slow(0.0, 0.9, 4.0, "dear"), Slow(1.0, 0.9, 1.0, "cheap")
    planning = slow_planning(dear, cheap)
    play(planning, FLAT, 100)
    assert cheap.n_asked == 100
    assert dear.n_asked < 30
    assert not planning.is_resting


def test_nobody_rests_under_a_grammar() -> None:
    """What it leaves no choice about comes at places of its own."""
    drafter = Slow(1.0, 0.9, 40.0)
    planning = slow_planning(drafter)
    stats = RowStats.of(np.zeros((1, 8), np.float32))
    for _ in range(30):
        context = DraftContext(TEXT[:10], 10, SamplingConfig(), Noise(0), ToyMask(VOCAB))
        tree = run_passes(planning.propose(context, Budget(15, 15)))
        outcome = RoundOutcome(tree.beginning(0), (), TEXT[10:11], stats)
        planning.observe(context, outcome, RoundTimings(0.0, 10.0))
        assert not planning.is_resting
    assert drafter.n_asked == 30


def test_a_round_that_was_disturbed_counts_twice_at_most() -> None:
    cost = AskingCost()
    for ms in (1.0, 1.0, 1.0, 1.0, 100.0):
        cost.observe(ms)
    assert cost.ms == pytest.approx(1.2)


class Watched(ToyDrafter):
    """Takes a second to propose, by a clock of its own."""

    n_asked = 0

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        self.n_asked += 1
        return super().propose(context, budget)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_tokens_equal_plain_while_drafters_rest(sampling: SamplingConfig) -> None:
    config = GenerationConfig(max_new_tokens=100, seed=5, sampling=sampling)
    plain = generate(ToySession(VOCAB), PROMPT, config)
    drafter = Watched([*PROMPT, *plain.token_ids], wrong)
    strategy = Speculative(AutoPlanner([drafter], KnownCosts(FLAT)))
    stream = open_stream(ToySession(VOCAB), PROMPT, config, strategy)

    class Clock(BusyClock):
        def now_s(self) -> float:
            return float(drafter.n_asked)

    stream._state.clock = Clock()
    list(stream)
    assert stream.result.token_ids == plain.token_ids
    assert drafter.ended == [[*PROMPT, *plain.token_ids]]
    check_sums(stream.result)
    assert 6 <= drafter.n_asked <= 12  # of 99 rounds


def test_heads_in_the_model_never_rest_for_the_time_of_their_drafter() -> None:
    """They say something in a pass that is asked to, so a try behind a rest would find nothing."""
    drafter = Slow(0.0, 0.9, 40.0, MTP)
    play(slow_planning(drafter), FLAT, 60)
    assert drafter.n_asked >= 20
