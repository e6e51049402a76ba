"""When models that draft are asked, rest, read, and give way to each other."""

from __future__ import annotations

import pytest

from edgedec.runtime.config import SamplingConfig
from edgedec.runtime.decoding.auto_planner import AutoPlanner
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.decoding.model_advisor import ModelAdvisor, ModelPlan, ModelRates
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt
from edgedec.runtime.sampling.noise import Noise

from ..conftest import ToySession
from .oracles import FLAT, TEXT, Oracle, OracleModel, make, play, run


def test_a_draft_model_is_asked_when_its_steps_pay() -> None:
    model = Oracle(0.8, 0.8, depth=5, name="draft")
    run(make([], FLAT, model), FLAT, 30)
    assert model.n_asked == 30


def test_a_draft_model_that_is_always_wrong_rests_longer_and_longer() -> None:
    model = Oracle(0.0, 0.8, depth=5, name="draft")
    sizes, _ = run(make([], FLAT, model), FLAT, 300)
    assert model.n_asked <= 16
    assert sizes[-40:].count(0) >= 38


class Dawdler(Oracle):
    """Takes time between its passes."""

    now_s = 0.0

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        self.now_s += 0.040
        return super().propose(context, budget)


def test_what_a_draft_model_does_between_its_passes_counts() -> None:
    model = Dawdler(0.8, 0.8, depth=5, name="draft")
    begin = make([], FLAT, model).begin
    planning = begin(DraftPrompt(TEXT[:10]), ToySession(1), lambda: model.now_s)
    play(planning, FLAT, 100)
    assert 1 <= model.n_asked <= 12


def test_a_draft_model_that_lost_in_outputs_before_begins_the_next_one_resting() -> None:
    model = Oracle(0.0, 0.8, depth=5, name="draft")
    planner = make([], FLAT, model)
    run(planner, FLAT, 300)
    run(planner, FLAT, 300)
    model.n_asked = 0
    for _ in range(10):
        run(planner, FLAT, 30)
    assert 10 <= model.n_asked <= 30
    model.n_asked, model.right = 0, 0.9
    run(planner, FLAT, 60)
    assert model.n_asked >= 30


def test_what_free_drafters_had_right_is_not_the_draft_models() -> None:
    model = Oracle(0.0, 0.5, depth=5, name="draft")
    planner = make([Oracle(1.0, 0.3)], FLAT, model)
    run(planner, FLAT, 20)
    n_asked, rate = model.n_asked, planner.model_rates("draft", None).levels.rate(1)
    assert n_asked > 0
    assert rate < 0.7 * 3.0 * 0.98**n_asked / (3.0 * 0.98**n_asked + 1) + 1e-9


def test_a_draft_model_that_lost_is_not_tried_while_free_drafts_do_well() -> None:
    free, model = Oracle(0.0, 0.01), Oracle(0.0, 0.8, depth=5, name="draft")
    planner = make([free], FLAT, model)
    planning = planner.begin(DraftPrompt(TEXT[:10]), ToySession(1))
    play(planning, FLAT, 10)
    model.n_asked, free.right, free.claimed = 0, 1.0, 0.9
    play(planning, FLAT, 60)
    assert model.n_asked == 0
    free.right, free.claimed = 0.0, 0.0
    play(planning, FLAT, 5)
    assert model.n_asked == 1, "the try had waited"


def test_what_plans_promise_is_believed_as_far_as_it_came_true() -> None:
    context = DraftContext(TEXT[:10], 10, SamplingConfig(), Noise(0))
    room, target, rates = Budget(n_nodes=100, depth=100), CostTable(dict(FLAT)), ModelRates()
    drafting = OracleModel(Oracle(0.8, 0.8)).begin(DraftPrompt(TEXT[:10]))
    advisor = ModelAdvisor(drafting, CostTable({1: 2.0, 16: 4.0}), rates)
    first = advisor.plan(context, room, target, 0.001)
    for _ in range(20):  # all drafted levels hold, and yet it takes twice as long as planned
        advisor.learn(first, first.levels, 1 + first.levels, 2 * (1 + first.levels) / first.rate)
    later = advisor.plan(context, room, target, 0.001)
    assert later.rate == pytest.approx(rates.levels.trust.factor * later.promised_rate)
    believed = rates.levels.trust.factor
    assert believed < 0.75
    for _ in range(200):  # what is long past says little about what it would bring now
        advisor.learn_without(1.0)
    assert rates.levels.trust.factor > believed + 0.1


def test_a_draft_model_has_to_beat_free_drafts_not_only_plain_decoding() -> None:
    drafting = OracleModel(Oracle(0.8, 0.8)).begin(DraftPrompt(TEXT[:10]))
    context = DraftContext(TEXT[:10], 10, SamplingConfig(), Noise(0))
    room, target = Budget(n_nodes=100, depth=100), CostTable(dict(FLAT))
    advisor = ModelAdvisor(drafting, CostTable({1: 2.0, 16: 4.0}), ModelRates())
    for free_rate, may_draft in ((0.1, True), (0.3, False)):
        for _ in range(20):  # twice as fast as plain decoding
            advisor.learn(ModelPlan(1, 0.2, promised_rate=0.2, free_rate=free_rate), 1, 2, 10.0)
        assert bool(advisor.plan(context, room, target, 0.1).levels) == may_draft


def test_no_try_begins_with_reading_much() -> None:
    model = Oracle(0.0, 0.8, depth=5, name="draft")
    planner = make([], FLAT, model)
    run(planner, FLAT, 100)
    model.n_unread, model.n_asked = 2000, 0
    run(planner, FLAT, 100)
    assert model.n_asked == 0


def test_the_model_drafts_that_promises_most() -> None:
    draft, head = Oracle(0.9, 0.9, 5, "draft"), Oracle(0.2, 0.9, 5, "head")
    planner = make([], FLAT, head, draft)
    run(planner, FLAT, 60)
    assert draft.n_asked >= 45
    draft.n_asked = head.n_asked = 0
    draft.right, head.right = 0.1, 0.9
    run(planner, FLAT, 60)
    assert head.n_asked >= 40
    assert "head" in " ".join(run_and_explain(planner))


def run_and_explain(planner: AutoPlanner) -> list[str]:
    planning = planner.begin(DraftPrompt(TEXT[:10]), ToySession(1))
    play(planning, FLAT, 5)
    return planning.explain()


def test_two_models_that_are_wrong_cost_little() -> None:
    models = Oracle(0.0, 0.8, 5, "draft"), Oracle(0.0, 0.8, 5, "head")
    sizes, _ = run(make([], FLAT, *models), FLAT, 300)
    assert sum(model.n_asked for model in models) <= 32
    assert sizes[-40:].count(0) >= 36


def test_a_draft_model_far_behind_a_short_output_is_left_alone() -> None:
    model = Oracle(0.8, 0.8, name="draft")
    model.n_unread = 2000
    run(make([], FLAT, model), FLAT, 10)
    assert model.n_asked == 0


@pytest.mark.parametrize(("n_missing", "first"), [(1, 0), (20, 0), (60, 2), (160, 9)])
@pytest.mark.parametrize("reads_end_only", [False, True])
def test_reading_much_waits_until_as_much_was_lost_without(
    n_missing: int, first: int, reads_end_only: bool
) -> None:
    """Reading costs a quarter of a millisecond a token, and a plain step ten."""
    model = Oracle(0.8, 0.8, name="draft")
    model.reads_end_only = reads_end_only
    model.n_unread = n_missing
    for n_rounds in range(40):
        run(make([], FLAT, model), FLAT, n_rounds + 1)
        if model.n_asked:
            break
    waited = n_rounds / 3 if reads_end_only else n_rounds
    assert waited == pytest.approx(first, abs=2)
    assert (n_rounds == 0) == (n_missing < 40)


@pytest.mark.parametrize(("right", "n_rounds"), [(0.2, 60), (0.0, 60), (0.75, 200)])
def test_what_was_predicted_is_read_when_as_much_was_lost(right: float, n_rounds: int) -> None:
    """Reading 400 tokens costs ten plain steps; drafts that hold as often as after it need none."""
    model = Oracle(right, 0.8, name="draft")
    model.n_predicted, model.right_when_read = 400, 0.8
    planning = make([], FLAT, model).begin(DraftPrompt(TEXT[:10]), ToySession(1))
    waited = 0
    while model.n_predicted and waited < n_rounds:
        play(planning, FLAT, 1)
        waited += 1
    if right > 0.7:
        assert waited == n_rounds
    else:
        assert 4 < waited < 60


def test_a_short_answer_is_no_reason_to_read_what_was_predicted() -> None:
    model = Oracle(0.0, 0.8, name="draft")
    model.n_predicted, model.right_when_read = 2000, 0.9
    run(make([], FLAT, model), FLAT, 20)
    assert model.n_predicted == 2000
