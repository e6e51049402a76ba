"""When a draft model reads what it has missed of the text: sums worked out by hand."""

from __future__ import annotations

import pytest

from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.decoding.model_advisor import ModelAdvisor, ModelRates
from edgedec.runtime.drafting.draft_cost import DraftCost
from edgedec.runtime.drafting.drafter import Budget

from .advisor_toys import CONTEXT, OWN_MS, ROOM, TARGET, Model, advisor_of, plans


@pytest.mark.parametrize(
    ("missing", "reads_end_only", "depth", "n_rounds"),
    [
        (2, False, 100, 0),
        (50, False, 100, 0),  # 12 ms, of which 10 are for nothing; a round saves 4.84
        (102, False, 100, 3),  # 25 ms
        (102, True, 100, 10),  # a round saves 1.45
        (102, False, 2, None),  # two tokens never bring half of 25 ms
        (602, False, 10, None),  # ten bring 48, less than half of 150
        (602, False, 16, 28),
        (100_000, False, 10**9, None),  # nothing is expected of more than 128 tokens
    ],
)
def test_a_text_is_read_once_doing_without_has_cost_as_much(
    missing: int, reads_end_only: bool, depth: int, n_rounds: int | None
) -> None:
    model = Model(missing)
    model.reads_end_only = reads_end_only
    advisor = advisor_of(model)
    advisor.saved_ms = 1000.0
    levels = [plan.levels for plan in plans(advisor, 40, room=Budget(100, depth))]
    waited = 40 if n_rounds is None else n_rounds
    assert levels == [0] * waited + [3] * (40 - waited)


@pytest.mark.parametrize(("missing", "feed_ms"), [(0, 0.0), (1, 0.0), (2, 2 / 15), (16, 2.0)])
def test_few_tokens_to_read_are_a_part_of_what_a_round_promises(
    missing: int, feed_ms: float
) -> None:
    """A model that drafts now and then reads each time what others drafted in between."""
    plan = advisor_of(Model(missing)).plan(CONTEXT, ROOM, TARGET, 0.1)
    assert plan.rate == pytest.approx((1 + 0.9 + 0.81 + 0.729) / (6 + feed_ms + 11.75))


def test_what_is_read_again_has_to_be_lost_again() -> None:
    """25 ms were read; a round without saves 4.84, and 10 are for nothing."""
    model, room = Model(102), Budget(100, 8)  # eight tokens save less than twice as much
    advisor = advisor_of(model)
    advisor.saved_ms = 1000.0
    *_, plan = plans(advisor, 4, room=room)
    assert plan.levels == 3
    for n_fed, n_rounds in ((16, 0), (17, 3)):
        model.passes.cost = DraftCost(n_fed, 25.0, 2, 2, 4.0, 2)
        advisor.learn(plan, 3, 4, 4 / plan.promised_rate - 4.0)
        is_asked = [plan.levels > 0 for plan in plans(advisor, 4, room=room)]
        assert is_asked == [False] * n_rounds + [True] * (4 - n_rounds)


@pytest.mark.parametrize(
    ("saved_ms", "depth", "is_asked"),
    [
        (0.0, 51, True),  # 25 ms are less than a twentieth of 510
        (0.0, 49, False),
        (1.0, 49, True),
        (-1.0, 51, False),
        (0.0, 1000, True),
    ],
)
def test_reading_costs_a_twentieth_of_the_time_at_most_and_what_was_saved(
    saved_ms: float, depth: int, is_asked: bool
) -> None:
    advisor = advisor_of(Model(102))
    advisor.saved_ms = saved_ms
    last = plans(advisor, 30, room=Budget(100, depth))[-1]
    assert (last.levels > 0) == is_asked


@pytest.mark.parametrize(("depth", "n_rounds"), [(10, 3), (11, 0)])
def test_what_other_texts_have_shown_to_save_much_is_read_at_once(
    depth: int, n_rounds: int
) -> None:
    """A token saves 4.84 ms, and reading takes 25: twice that is 10.3 tokens' worth."""
    rates = ModelRates(0.9)
    rates.learn_step(1.0)
    advisor = ModelAdvisor(Model(102), CostTable(dict(OWN_MS)), rates)
    advisor.saved_ms = 1000.0
    is_asked = [plan.levels > 0 for plan in plans(advisor, 5, room=Budget(100, depth))]
    assert is_asked == [False] * n_rounds + [True] * (5 - n_rounds)


def test_what_free_drafts_bring_is_remembered_for_the_next_request() -> None:
    rates = ModelRates(0.9)
    first = ModelAdvisor(Model(), CostTable(dict(OWN_MS)), rates)
    for _ in range(2):
        first.learn_without(1.5)
    assert rates.free_gain == pytest.approx(1 + 0.5 * (1 - 0.99**2))
    rates.free_gain = 1.5
    # 10 / 1.5 ms a token without it, 5.16 with it, and 15 ms of reading to be lost.
    second = ModelAdvisor(Model(102), CostTable(dict(OWN_MS)), rates)
    levels = [plan.levels for plan in plans(second, 12)]
    assert levels == [0] * 9 + [3] * 3


def test_where_free_drafts_do_well_reading_saves_less() -> None:
    advisor = advisor_of(Model(102))
    for _ in range(100):
        advisor.learn_without(1.5)
    # 10 / 1.5 ms a token without it, 5.16 with it: ten rounds for the 15 ms that are not for free.
    levels = [plan.levels for plan in plans(advisor, 12)]
    assert levels == [0] * 9 + [3] * 3


@pytest.mark.parametrize(
    ("free_rate", "depth", "n_rounds"),
    [
        (0.1, 100, 3),  # a token takes 10 ms without it, 5.94 with it
        (0.15, 100, 14),  # 6.67
        (0.18, 100, None),  # 5.56
        (0.1, 3, 3),
        (0.1, 1, None),  # one token never brings half of what reading takes
    ],
)
def test_what_was_predicted_is_computed_once_doing_without_has_cost_as_much(
    free_rate: float, depth: int, n_rounds: int | None
) -> None:
    """40 rows take 10 ms. Drafts after what was predicted never hold."""
    rates, model = ModelRates(0.9), Model(predicted=40)
    for _ in range(300):
        rates.predicted_levels.observe(3, 0)
    advisor = ModelAdvisor(model, CostTable(dict(OWN_MS)), rates)
    levels = [plan.levels for plan in plans(advisor, 16, free_rate, Budget(100, depth))]
    waited = 16 if n_rounds is None else n_rounds - 1
    assert levels == [0] * waited + [3] * (16 - waited)
    assert model.n_read == 16 - waited
