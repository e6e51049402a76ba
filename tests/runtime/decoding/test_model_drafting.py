"""When models that draft are asked, rest, read, and give way to each other."""

from __future__ import annotations

import pytest

from edgedec.runtime.decoding.auto_planner import AutoPlanner
from edgedec.runtime.decoding.draft_length import OVERDRAFT, STAKE
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt

from .oracles import FLAT, TEXT, Oracle, make, play, run


def test_a_draft_model_is_asked_when_its_steps_pay() -> None:
    model = Oracle(0.8, 0.8, depth=5, name="draft")
    run(make([], FLAT, model), FLAT, 30)
    assert model.n_asked == 30


class Timed(Oracle):
    """Takes the time that its passes cost."""

    now_s = 0.0

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        tree = super().propose(context, budget)
        Timed.now_s += (self.cost.feed_ms + self.cost.level_ms) / 1000
        return tree


@pytest.mark.parametrize("names", [["draft"], ["draft", "head"]])
def test_models_that_are_always_wrong_lose_no_more_than_may_be_lost(names: list[str]) -> None:
    Timed.now_s = 0.0
    models = [Timed(0.0, 0.8, depth=5, name=name) for name in names]
    planning = make([], FLAT, *models).begin(DraftPrompt(TEXT[:10]), lambda: Timed.now_s)
    sizes, rate = play(planning, FLAT, 300)
    assert sum(model.n_asked for model in models) > 0
    taken = len(sizes) / (10 * rate) + 100 * Timed.now_s  # plain steps
    assert taken <= (1 + OVERDRAFT) * len(sizes) + STAKE + 0.5, "half a step for estimates"


class Dawdler(Oracle):
    """Takes time between its passes."""

    now_s = 0.0

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        self.now_s += 0.040
        return super().propose(context, budget)


def test_what_a_draft_model_does_between_its_passes_counts() -> None:
    model = Dawdler(0.8, 0.8, depth=5, name="draft")
    begin = make([], FLAT, model).begin
    planning = begin(DraftPrompt(TEXT[:10]), lambda: model.now_s)
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
    assert 1 <= model.n_asked <= 30
    model.n_asked, model.right = 0, 0.9
    run(planner, FLAT, 60)
    assert model.n_asked >= 30


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
    planning = planner.begin(DraftPrompt(TEXT[:10]))
    play(planning, FLAT, 5)
    return planning.explain()


def test_a_draft_model_far_behind_a_short_output_is_left_alone() -> None:
    model = Oracle(0.8, 0.8, name="draft")
    model.n_unread = 2000
    run(make([], FLAT, model), FLAT, 10)
    assert model.n_asked == 0


def test_a_short_answer_is_no_reason_to_read_what_was_predicted() -> None:
    model = Oracle(0.0, 0.8, name="draft")
    model.n_predicted, model.right_when_read = 2000, 0.9
    run(make([], FLAT, model), FLAT, 20)
    assert model.n_predicted == 2000


def test_reading_much_waits_until_it_may_be_lost() -> None:
    """Reading costs a quarter of a millisecond a token, and a plain step ten."""
    asked_after = []
    for n_missing in (1, 20, 60, 2000):
        model = Oracle(0.8, 0.8, name="draft")
        model.n_unread = n_missing
        for n_rounds in range(60):
            run(make([], FLAT, model), FLAT, n_rounds + 1)
            if model.n_asked:
                break
        asked_after.append(n_rounds)
    assert asked_after[0] == 0
    assert asked_after == sorted(asked_after)
    assert asked_after[-1] == 59, "nothing that was saved pays for reading 2000 tokens"


def test_what_was_predicted_is_read_where_that_may_be_lost_and_saves_more() -> None:
    model = Oracle(0.0, 0.8, name="draft")
    model.n_predicted, model.right_when_read = 40, 0.8
    planner = make([], FLAT, model)
    planning = planner.begin(DraftPrompt(TEXT[:10]), lambda: 0.0)
    play(planning, FLAT, 100)
    assert model.n_predicted == 0


def test_a_model_that_fails_is_left_alone_and_the_text_goes_on() -> None:
    class Broken(Oracle):
        def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
            raise RuntimeError("no more drafts")

    planner = make([], FLAT, Broken(0.8, 0.8, name="draft"))
    sizes, rate = run(planner, FLAT, 30)
    assert sizes == [0] * 30
    assert rate == pytest.approx(1 / 10)
    assert planner.failures == {"draft": "RuntimeError: no more drafts"}
