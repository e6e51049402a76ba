"""When a draft model is asked, and how deep: the advice against sums worked out by hand."""

from __future__ import annotations

import pytest

from edgedec.runtime.decoding.cost_book import CostBook
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.decoding.model_advisor import ModelAdvisor, ModelPlan, ModelRates
from edgedec.runtime.decoding.model_choice import ModelChoice
from edgedec.runtime.drafting.draft_cost import DraftCost
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext
from edgedec.runtime.drafting.isolation import IsolatedModelDrafting, Isolation
from edgedec.runtime.sequences.passes import Passes, run_passes
from edgedec.runtime.sequences.sequence import TokenSequence

from .advisor_toys import CONTEXT, OWN_MS, ROOM, TARGET, Model, advisor_of, plans

NOTHING = ModelPlan()


def lose(advisor: ModelAdvisor) -> None:
    """Takes in rounds that brought nothing until the advisor gives up."""
    for _ in range(2):  # the first uses up what was taken for granted: 0.8 * 1.3 > 1 > 0.64 * 1.3
        advisor.learn(ModelPlan(1, 0.2, promised_rate=0.2, free_rate=0.1), 0, 0, 10.0)


@pytest.mark.parametrize(
    ("acceptance", "depth", "levels", "rate"),
    [
        # Passes over 1 + 1.3 rows a level: 2, 4 and 5 of them.
        (0.5, 100, 1, 1.5 / (2 + 10.5)),
        (0.9, 100, 3, (1 + 0.9 + 0.81 + 0.729) / (6 + 11.75)),
        (0.9, 2, 2, (1 + 0.9 + 0.81) / (4 + 11.0)),
        (0.9, 1, 1, (1 + 0.9) / (2 + 10.5)),
    ],
)
def test_the_depth_that_promises_most_is_planned(
    acceptance: float, depth: int, levels: int, rate: float
) -> None:
    plan = advisor_of(acceptance=acceptance).plan(CONTEXT, Budget(100, depth), TARGET, 0.1)
    assert plan.levels == levels
    assert plan.rate == plan.promised_rate == pytest.approx(rate)
    assert plan.free_rate == 0.1
    assert not plan.is_probe


def test_a_pass_has_no_more_rows_than_there_is_room_for() -> None:
    plan = advisor_of().plan(CONTEXT, Budget(2, 100), TARGET, 0.1)
    assert plan.rate == pytest.approx((1 + 0.9 + 0.81 + 0.729) / (6 + 10.75))


def test_a_plan_must_promise_three_in_a_hundred_more_than_doing_without_or_than_another() -> None:
    promised = (1 + 0.9 + 0.81 + 0.729) / 17.75
    for share, levels in ((1.029, 0), (1.031, 3)):
        advisor = advisor_of()
        assert advisor.plan(CONTEXT, ROOM, TARGET, promised / share).levels == levels
        other = promised / share
        assert advisor.plan(CONTEXT, ROOM, TARGET, 0.1, other).levels == levels


def test_promises_are_believed_as_far_as_they_came_true() -> None:
    rates = ModelRates(0.9)
    advisor = ModelAdvisor(Model(), CostTable(dict(OWN_MS)), rates)
    (first,) = plans(advisor, 1)
    advisor.learn(first, 3, 2, 3 / first.promised_rate)  # three were promised, two came
    (later,) = plans(advisor, 1)
    assert later.rate == pytest.approx(later.promised_rate * 12 / 13)
    advisor.learn(ModelPlan(2, 0.1, True, 0.1, 0.1), 2, 9, 30.0)  # a probe promises nothing
    assert rates.levels.trust.factor == pytest.approx(12 / 13)


def test_what_the_model_may_draft() -> None:
    advisor = advisor_of()
    plan = ModelPlan(3, 0.2, promised_rate=0.2, free_rate=0.1)
    row_ms = (14.0 - 11.0) / 4
    expected = Budget(20, 3, 0.5 * row_ms * 0.2, min_step_value=2.0 * 0.2 / 0.8, n_step_nodes=2)
    assert advisor.budget(plan, ROOM, TARGET, 20) == expected
    assert advisor.budget(plan, Budget(7, 2), TARGET, 20) == expected.__class__(
        7, 2, expected.min_value, expected.min_step_value, 2
    )
    probe = ModelPlan(2, 0.2, is_probe=True)
    assert advisor.budget(probe, ROOM, TARGET, 20).depth == 2


def test_more_levels_are_drafted_once_most_of_them_held() -> None:
    advisor = advisor_of()
    plan = ModelPlan(3, 0.2, promised_rate=0.2, free_rate=0.1)
    depths = []
    for n_held in (1, 2, 3, 4, 8):
        advisor.learn(plan, n_held, n_held + 1, 10.0)
        depths.append(advisor.budget(plan, ROOM, TARGET, 20).depth)
    assert depths == [3, 6, 6, 8, 8]


def test_a_step_is_expected_to_take_what_proposals_took() -> None:
    rates = ModelRates()
    assert not rates.was_asked
    scale, changes = 1.0, [1.2, 100.0, 1e-9, *[1.1] * 20]
    for n, change in enumerate(changes, start=1):
        rates.learn_step(change)
        scale *= min(max(change, 1 / 1.5), 1.5) ** max(0.1, 1 / (1 + n))
        assert rates.step_scale == pytest.approx(scale)
    assert rates.was_asked


@pytest.mark.parametrize(
    ("cost", "step_ms", "drafted_ms"),
    [
        # Of two tokens that were fed their pass counts as a step, of few as a part of the round.
        (DraftCost(2, 2.0, 2, 2, 4.0, 2, 1.2), (2.0 + 4.0 + 1.2) / 3, 7.2),
        (DraftCost(3, 9.0, 2, 2, 4.0, 2, 0.8), (4.0 + 0.8) / 2, 13.8),
        (DraftCost(16, 9.0, 2, 2, 4.0, 2, 0.8), (4.0 + 0.8) / 2, 13.8),
        (DraftCost(17, 9.0, 2, 2, 4.0, 2, 0.8), (4.0 + 0.8) / 2, 4.8),
        (DraftCost(0, 0.0, 2, 2, 4.0, 2, 0.8), (4.0 + 0.8) / 2, 4.8),
        (DraftCost(1, 2.4, 0, 0, 0.0, 1, 0.0), 2.4, 2.4),
    ],
)
def test_what_a_proposal_took_is_learned(
    cost: DraftCost, step_ms: float, drafted_ms: float
) -> None:
    model = Model()
    advisor = advisor_of(model)
    model.passes.cost = cost
    advisor.learn(ModelPlan(2, 0.2, promised_rate=0.2, free_rate=0.1), 1, 2, 10.0)
    assert advisor.step_ms == pytest.approx(2.0 * (step_ms / 2.0) ** 0.5)
    assert advisor.drafted_ms == pytest.approx(drafted_ms)


def test_of_a_proposal_without_a_pass_nothing_is_learned() -> None:
    rates, model = ModelRates(), Model()
    advisor = ModelAdvisor(model, CostTable(dict(OWN_MS)), rates)
    advisor.learn(ModelPlan(1, 0.2, promised_rate=0.2, free_rate=0.1), 0, 1, 10.0)
    assert not rates.was_asked
    assert rates.passes_per_level == 1.0


def test_levels_that_came_of_fewer_passes_are_cheaper() -> None:
    rates, model = ModelRates(0.9), Model()
    advisor = ModelAdvisor(model, CostTable(dict(OWN_MS)), rates)
    plan = ModelPlan(3, 0.2, promised_rate=0.2, free_rate=0.1)
    model.passes.cost = DraftCost(1, 2.0, 1, 1, 2.0, depth=4)  # two passes made four levels
    advisor.learn(plan, 1, 2, 10.0)
    assert rates.passes_per_level == pytest.approx(1 + 0.1 * (0.5 - 1))
    before = rates.passes_per_level
    model.passes.cost = DraftCost(1, 2.0, 3, 6, 6.0, depth=2)  # four passes made it wide
    advisor.learn(plan, 1, 2, 10.0)
    assert rates.passes_per_level == pytest.approx(before + 0.1 * (1 - before))
    (found,) = plans(advisor, 1, room=Budget(100, 1))
    ms = rates.passes_per_level * advisor.step_ms + 10.5
    rate = (0.9 * (0.9 * 2.7 + 1) + 1) / (0.9 * (0.9 * 3 + 1) + 1)
    assert found.promised_rate == pytest.approx((1 + rate) / ms)


def test_a_model_that_lost_rests_and_is_tried_again() -> None:
    advisor = advisor_of()
    lose(advisor)
    assert plans(advisor, 8) == [NOTHING] * 8
    (probe,) = plans(advisor, 1)
    assert probe.is_probe
    assert (probe.levels, probe.rate) == (2, pytest.approx(1 / 10))
    advisor.learn(probe, 0, 0, 10.0)  # lost again: it rests for twice as long
    assert plans(advisor, 16) == [NOTHING] * 16
    assert plans(advisor, 1)[0].is_probe


def test_a_probe_that_won_is_followed_by_another_until_one_loses() -> None:
    advisor = advisor_of()
    lose(advisor)
    probe = plans(advisor, 9)[-1]
    advisor.learn(probe, 2, 3, 10.0)  # three times what was promised without it
    (again,) = plans(advisor, 1)
    assert again.is_probe
    advisor.learn(again, 1, 1, 10.0)  # exactly what was promised is no gain
    assert not any(plan.is_probe for plan in plans(advisor, 3))


@pytest.mark.parametrize(("free_rate", "is_tried"), [(0.1249, True), (0.1251, False)])
def test_a_probe_waits_for_a_round_that_others_do_not_draft_well(
    free_rate: float, is_tried: bool
) -> None:
    advisor = advisor_of()
    lose(advisor)
    plans(advisor, 8)
    assert plans(advisor, 1, free_rate)[0].is_probe == is_tried
    if not is_tried:
        assert plans(advisor, 1, 0.1)[0].is_probe


@pytest.mark.parametrize(
    ("depth", "missing", "is_probe"), [(1, 0, False), (2, 42, True), (2, 43, False)]
)
def test_a_probe_needs_room_and_little_to_read(depth: int, missing: int, is_probe: bool) -> None:
    """Up to one step of the target model, 10 ms: 40 rows beyond the usual two."""
    model = Model()
    advisor = advisor_of(model)
    lose(advisor)
    plans(advisor, 8)
    model.missing = missing
    assert plans(advisor, 1, room=Budget(100, depth))[0].is_probe == is_probe


def test_a_known_model_whose_plans_do_not_pay_is_asked_for_now_and_then() -> None:
    model = Model()
    advisor = advisor_of(model, acceptance=0.02)
    assert plans(advisor, 12) == [NOTHING] * 12  # nobody knows yet: no rest, so no probe either
    model.passes.cost = DraftCost(1, 2.0, 0, 0, 0.0, 1)
    advisor.learn(ModelPlan(1, 0.2, promised_rate=0.2, free_rate=0.1), 0, 2, 10.0)
    found = plans(advisor, 10)
    assert [plan.is_probe for plan in found] == [False] * 9 + [True]


def test_what_became_of_drafts_is_learned_of_the_text_they_follow() -> None:
    rates, model = ModelRates(0.5), Model(predicted=1000)
    advisor = ModelAdvisor(model, CostTable(dict(OWN_MS)), rates)
    model.passes.cost = DraftCost(1, 2.0, 1, 1, 2.0, depth=2)
    plans(advisor, 1)
    advisor.learn(ModelPlan(2, 0.2, promised_rate=0.2, free_rate=0.1), 2, 3, 10.0)
    assert rates.levels.rate(1) == 0.5 < rates.predicted_levels.rate(1)
    model.predicted = 0
    plans(advisor, 1)
    advisor.learn(ModelPlan(2, 0.2, promised_rate=0.2, free_rate=0.1), 2, 3, 10.0)
    assert rates.levels.rate(1) == pytest.approx((0.98 * 1.5 + 1) / (0.98 * 3 + 1))


@pytest.mark.parametrize(("n_held", "n_emitted"), [(2, 2), (2, 3)])
def test_levels_behind_what_was_emitted_are_neither_right_nor_wrong(
    n_held: int, n_emitted: int
) -> None:
    rates, model = ModelRates(0.5), Model()
    advisor = ModelAdvisor(model, CostTable(dict(OWN_MS)), rates)
    model.passes.cost = DraftCost(1, 2.0, 3, 3, 6.0, depth=4)
    plans(advisor, 1)
    plan = ModelPlan(2, 0.2, promised_rate=0.2, free_rate=0.1)
    advisor.learn(plan, n_held, n_emitted, 10.0)
    assert rates.levels.rate(2) > 0.5
    assert rates.levels.rate(4) == 0.5
    assert (rates.levels.rate(3) == 0.5) == (n_emitted == n_held)


def test_a_known_model_that_promises_more_than_plain_decoding_does_not_rest() -> None:
    """It only has to wait for rounds that free drafters do not fill."""
    rates = ModelRates(0.9)
    rates.learn_step(1.0)
    advisor = ModelAdvisor(Model(), CostTable(dict(OWN_MS)), rates)
    promised = (1 + 0.9 + 0.81 + 0.729) / 17.75
    assert promised > 1.03 / 10
    assert plans(advisor, 20, free_rate=promised) == [NOTHING] * 20
    assert not plans(advisor, 1)[0].is_probe


class Known(CostBook):
    """Costs of the draft model, which nobody measures."""

    def of(self, role: str, sequence: TokenSequence) -> Passes[CostTable]:
        return CostTable(dict(OWN_MS))
        yield


class Drafting(Model):
    """A model that takes 4 ms to propose nothing."""

    def __init__(self, clock: list[float]) -> None:
        super().__init__()
        self._clock = clock

    def propose(self, context: DraftContext, budget: Budget) -> Passes[DraftTree]:
        self._clock[0] += 0.004
        return DraftTree()
        yield


def test_what_a_request_saved_counts_all_that_proposals_took() -> None:
    clock = [0.0]
    model = Drafting(clock)
    choice = ModelChoice(
        [("draft", IsolatedModelDrafting(Isolation("draft"), model))],
        Known(),
        lambda role, promise: ModelRates(0.9),
        lambda: clock[0],
    )
    plan = run_passes(choice.plan(CONTEXT, ROOM, TARGET, 0.1, TARGET))
    run_passes(choice.propose(CONTEXT, ROOM, TARGET, plan, 20))
    choice.learn(plan, 1, 2, 10.0, 11.0)
    choice.learn(NOTHING, 0, 1, 10.0, 12.0)
    advisor = choice._candidates[0].advisor
    assert advisor is not None
    assert advisor.saved_ms == pytest.approx((20 - 11 - 4) + (10 - 12))


@pytest.mark.parametrize(
    ("n_emitted", "spent_ms", "reads_after"),
    [(1, 0.0, 4), (2, 0.0, None), (2, 10.0, 4), (2, 5.0, 6)],
)
def test_every_model_hears_what_rounds_without_it_brought(
    n_emitted: int, spent_ms: float, reads_after: int | None
) -> None:
    """Of 100 rounds of 10 ms with no model, or with another; it is far behind the text.

    A token takes 10, 5, 10 and 7.5 ms without it, and 5.16 with it, as 25 ms of reading allow for.
    """
    far, other = Model(102), Model()
    models = [("far", far), *([("other", other)] if spent_ms else [])]
    choice = ModelChoice(
        [(role, IsolatedModelDrafting(Isolation(role), model)) for role, model in models],
        Known(),
        lambda role, promise: ModelRates(0.9),
        lambda: 0.0,
    )
    other.passes.cost = DraftCost(level_ms=spent_ms)
    plan = run_passes(choice.plan(CONTEXT, ROOM, TARGET, 0.1, TARGET))
    assert plan.levels == (3 if spent_ms else 0)
    for _ in range(100):
        choice.learn(plan, 0, n_emitted, 10.0, 10.0)
    far_advisor = choice._candidates[0].advisor
    assert far_advisor is not None
    assert far_advisor.saved_ms == pytest.approx(100 * (10.0 * n_emitted - 10.0))
    levels = [plan.levels for plan in plans(far_advisor, 12)]
    waited = 12 if reads_after is None else reads_after - 2  # the first was asked for above
    assert levels == [0] * waited + [3] * (12 - waited)
