"""The planner against made-up devices and drafters whose worth is known."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.runtime.config import SamplingConfig
from edgedec.runtime.decoding.acceptance_rates import Backoff
from edgedec.runtime.decoding.auto_planner import AutoPlanner, best_part, led_by, reordered
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.decoding.planner import RoundTimings
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import (
    Budget,
    DraftContext,
    RoundOutcome,
)
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.row_stats import RowStats
from edgedec.runtime.sequences.rows import ALONE, Company

from ..conftest import ToySession
from .oracles import FLAT, STEEP, TEXT, KnownCosts, Oracle, begin, make, play, run


def test_nothing_to_propose_is_plain_decoding() -> None:
    sizes, rate = run(make([], FLAT), FLAT, 20)
    assert sizes == [0] * 20
    assert rate == pytest.approx(1 / 10)


def test_a_good_drafter_is_used_in_full() -> None:
    sizes, rate = run(make([Oracle(1.0, 0.9)], FLAT), FLAT, 20)
    assert min(sizes) == 4
    assert rate > 3 / 10


def test_rows_that_cost_as_much_as_steps_are_not_bought() -> None:
    sizes, rate = run(make([Oracle(0.6, 0.6)], STEEP), STEEP, 40)
    assert sum(sizes) == 0
    assert rate == pytest.approx(1 / 10)


class Listener(Oracle):
    """Proposes nothing, and remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__(0.0, 0.0)
        self.asked: list[Budget] = []

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        self.asked.append(budget)
        return DraftTree()


@pytest.mark.parametrize(("costs", "least"), [(FLAT, 0.0375), (STEEP, 1.0)])
def test_drafts_that_cannot_pay_are_asked_for_now_and_then_only(
    costs: dict[int, float], least: float
) -> None:
    listener = Listener()
    run(AutoPlanner([listener], KnownCosts(costs)), costs, 16)
    assert [budget.min_value for budget in listener.asked] == ([least] * 7 + [0.02]) * 2


def test_a_drafter_that_is_not_believed_is_asked_for_what_it_is_surer_of() -> None:
    listener = Listener()
    planner = AutoPlanner([listener], KnownCosts(STEEP))
    planner.trust["oracle"].estimated = 3.0  # nothing came of it: a quarter is believed
    run(planner, STEEP, 1)
    assert listener.asked[0].min_value == pytest.approx(4 * 1.0)


def test_a_liar_is_found_out_within_a_few_rounds_and_costs_little() -> None:
    sizes, rate = run(make([Oracle(0.0, 0.9)], FLAT), FLAT, 60)
    assert max(sizes[25:]) <= 1
    assert rate > 0.94 / 10


def test_a_drafter_that_becomes_right_is_used_again_without_having_been_verified() -> None:
    drafter = Oracle(0.0, 0.9)
    planner = make([drafter], FLAT)
    run(planner, FLAT, 60)
    drafter.right = 1.0
    sizes, _ = run(planner, FLAT, 30)
    assert min(sizes[15:]) >= 2


def test_the_log_tells_what_was_predicted_and_what_came_of_it() -> None:
    planner = make([Oracle(1.0, 0.9)], FLAT)
    planning = begin(planner)
    assert planning.explain() == []
    play(planning, FLAT, 20)
    (line,) = planning.explain()
    assert line.startswith("free drafts: 20 rounds, 4.0 drafted and 5.00 emitted per round")
    # All of it came true, of passes over five rows that take 11.75 ms, though 0.9 was claimed.
    promised, observed = (float(part.split()[-2]) for part in line.split(", ")[-2:])
    assert observed == pytest.approx(10 * 5 / 11.75, abs=0.006)
    assert 0.8 * observed < promised < 1.05 * observed
    assert line.split(", ")[-2].endswith(" predicted")
    assert line.endswith(" observed")


def test_others_are_asked_while_a_drafter_that_lost_rests() -> None:
    wrong, right = Oracle(0.0, 0.9, 1, "wrong"), Oracle(1.0, 0.9, 4, "right")
    planner = make([wrong, right], FLAT)
    planning = begin(planner)
    play(planning, FLAT, 60)
    assert right.n_asked == 60
    assert wrong.n_asked < 60


def test_what_is_not_proposed_is_forgotten_bit_by_bit() -> None:
    listener = Listener()
    planner = AutoPlanner([listener], KnownCosts(FLAT))
    planner.trust["oracle"].estimated = 3.0
    run(planner, FLAT, 100)
    assert planner.trust["oracle"].estimated == pytest.approx(3.0 * 0.99**100)


def test_best_part_takes_the_likeliest_nodes_with_their_parents() -> None:
    tree = DraftTree()
    a = tree.add(1, ROOT, 0.9, "x")
    b = tree.add(2, ROOT, 0.05, "x")
    c = tree.add(3, a, 0.8, "x")
    tree.add(4, b, 0.9, "x")
    chosen, rate = best_part(tree, CostTable(dict(FLAT)), 0.0, 10)
    assert set(chosen) == {a, c}
    assert rate == pytest.approx((1 + 0.9 + 0.72) / CostTable(dict(FLAT)).ms(3))
    assert best_part(tree, CostTable(dict(FLAT)), 0.0, 1)[0] == [a]
    moved = reordered(tree, [c, a])
    assert [node.token for node in moved.nodes] == [1, 3, 2, 4]
    assert moved.nodes[1].parent == 0


def test_rows_are_those_of_what_was_verified() -> None:
    """Of a proposal some nodes may not be fit for the pass, such as stop tokens."""
    tree = DraftTree()
    for token in (7, 8):
        tree.add(token, ROOT, 0.5, "a")
    tree.add(9, 1, 0.5, "a")
    fit = tree.subtree([1, 2])
    whole = led_by(fit, tree)
    assert whole.nodes[:2] == fit.nodes
    assert [(n.token, n.parent) for n in whole.nodes] == [(8, ROOT), (9, 0), (7, ROOT)]
    assert led_by(DraftTree(), tree).nodes == tree.nodes


def test_drafters_learn_of_the_rows_that_were_computed() -> None:
    """A node is dropped before the pass; what comes true lies behind it."""
    reported: list[RoundOutcome] = []

    class Forked(Listener):
        def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
            tree = DraftTree()
            tree.add(1, ROOT, 0.5, self.name)
            tree.add(TEXT[10], ROOT, 0.4, self.name)
            return tree

        def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
            reported.append(outcome)

    planning = begin(AutoPlanner([Forked()], KnownCosts(FLAT)))
    context = DraftContext(TEXT[:10], 10, SamplingConfig(), Noise(0))
    tree = run_passes(planning.propose(context, Budget(n_nodes=100, depth=100)))
    right = tree.matching(TEXT[10:])
    verified = tree.subtree(right)
    stats = RowStats.of(np.zeros((2, 8), np.float32))
    outcome = RoundOutcome(verified, (0,), (TEXT[10], TEXT[11]), stats)
    planning.observe(context, outcome, RoundTimings(0.0, 10.0))
    (found,) = reported
    assert found.path[0] == 0
    assert found.tree.nodes[0].token == TEXT[10]


def test_a_pass_teaches_what_its_drafts_and_the_token_before_them_cost() -> None:
    believed = {1: 10.0, 3: 10.5, 5: 11.0, 8: 14.0}
    planner = make([Oracle(1.0, 0.9, depth=4)], believed)
    sizes, _ = run(planner, {**believed, 5: 13.0}, 40)
    assert sizes[-10:] == [4] * 10
    table = run_passes(planner.costs.of("target", ToySession(1)))
    assert table.ms(5) == pytest.approx(13.0, rel=0.05)
    assert table.ms(5) - table.ms(3) > 2 * (believed[5] - believed[3])


def test_rests_grow_while_tries_are_lost_and_end_with_a_win() -> None:
    backoff = Backoff(first=1, longest=4)
    tried = []
    for _ in range(20):
        tried.append(backoff.is_over())
        if tried[-1]:
            backoff.lost()
    assert tried == [True, False, True, False, False, True, *[False] * 4, True, *[False] * 4, True,
                     *[False] * 4]  # fmt: skip
    backoff.reset()
    assert backoff.is_over()
    assert backoff.is_over()


def test_an_output_begins_with_shallow_drafts_until_most_of_them_hold() -> None:
    good, bad = Oracle(1.0, 0.9, depth=8, name="draft"), Oracle(0.0, 0.9, depth=8, name="draft")
    assert run(make([], FLAT, good), FLAT, 4)[0] == [3, 6, 8, 8]
    assert run(make([], FLAT, bad), FLAT, 3)[0] == [3, 3, 0]


@pytest.mark.parametrize(("right", "name", "is_asking"), [
    (0.0, "mtp", False), (1.0, "mtp", True), (1.0, "other", False),
])  # fmt: skip
def test_heads_in_the_model_are_left_out_where_their_own_drafts_do_not_come_true(
    right: float, name: str, is_asking: bool
) -> None:
    free = [Oracle(right, 0.9, 4, name)]
    planner = AutoPlanner(free, KnownCosts(FLAT), mtp_share=0.1)
    planning = begin(planner)
    assert planning.wants_mtp
    play(planning, FLAT, 14)
    assert planning.wants_mtp == is_asking
    without = begin(AutoPlanner(free, KnownCosts(FLAT)))
    assert not without.wants_mtp


def test_among_others_a_draft_has_to_pay_for_what_it_adds_to_their_pass() -> None:
    """Alone a draft of chance 0.2 pays; a row of a pass over nine costs more than it brings."""

    def drafted(company: Company) -> int:
        planner = make([Oracle(1.0, 0.2, 1)], FLAT)
        planning = begin(planner)
        timings = RoundTimings(0.0, 10.0, company)
        outcome = RoundOutcome(DraftTree(), (), TEXT[10:11], RowStats.of(np.zeros((1, 5))), {})
        for _ in range(20):
            context = DraftContext(TEXT[:10], 10, SamplingConfig(), Noise(0))
            tree = run_passes(planning.propose(context, Budget(15, 15)))
            planning.observe(context, outcome, timings)
        return len(tree)

    assert drafted(ALONE) == 1
    assert drafted(Company(8, 8)) == 0


def test_what_others_share_does_not_change_what_passes_cost_alone() -> None:
    planner = make([], FLAT)
    planning = begin(planner)
    play(planning, FLAT, 1)
    assert planner.costs.is_measuring("target") is False
    timings = RoundTimings(0.0, 100.0, Company(3, 12))
    outcome = RoundOutcome(DraftTree(), (), TEXT[10:11], RowStats.of(np.zeros((1, 5))), {})
    context = DraftContext(TEXT[:10], 10, SamplingConfig(), Noise(0))
    before = dict(run_passes(planner.costs.of("target", ToySession(1))).row_ms)
    for _ in range(5):
        run_passes(planning.propose(context, Budget(15, 15)))
        planning.observe(context, outcome, timings)
    assert run_passes(planner.costs.of("target", ToySession(1))).row_ms == before
