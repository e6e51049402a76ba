"""What may be lost, whatever drafters do; and what is chosen of what may be."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.decoding.draft_length import (
    ASKING_STAKE,
    HORIZON,
    IS_LIMIT,
    LENT,
    LOOK,
    MAX_CREDIT,
    MAX_NODES,
    OVERDRAFT,
    PURSE,
    STAKE,
    DepthAcceptance,
    Evidence,
    Ledger,
    ModelCosts,
    Worth,
    levels,
    verified,
)
from edgedec.runtime.drafting.draft_tree import ROOT, DraftNode

STEEP = CostTable({1: 10.0, 2: 12.0, 4: 18.0, 8: 33.0, 16: 66.0})


def chain(n: int, probability: float, origin: str = "x") -> list[DraftNode]:
    return [DraftNode(i, i - 1 if i else ROOT, i + 1, probability, origin) for i in range(n)]


Adversary = Callable[[int, random.Random], bool]
"""From the round to whether all drafts are right."""

ADVERSARIES: dict[str, Adversary] = {
    "always wrong": lambda at, rng: False,
    "right until trusted": lambda at, rng: at < 6,
    "right by turns": lambda at, rng: at % 7 < 3,
    "right at random": lambda at, rng: rng.random() < 0.3,
}


@pytest.mark.parametrize("credit", [0.0, 50.0])
@pytest.mark.parametrize("n_tokens", [1, 10, 24, 96, 700])
@pytest.mark.parametrize("name", ADVERSARIES)
@pytest.mark.parametrize("late", [1.0, 2.0, 0.5])
def test_no_text_loses_more_than_may_be_lost(
    name: str, n_tokens: int, credit: float, late: float
) -> None:
    """Drafters claim nearly everything; the rule believes all of it, and only the ledger holds.

    ``late``: costs change to that from the middle of the text on, and the table follows.
    """
    rng, ledger = random.Random(1), Ledger(credit)
    costs = CostTable(dict(STEEP.row_ms))
    taken_ms = plain_ms = 0.0
    at = emitted = 0
    while emitted < n_tokens:
        scale = late if emitted > n_tokens / 2 else 1.0
        max_ms = ledger.allowance(costs.ms(1), STAKE)
        draft = verified(chain(15, 0.95), {}, costs, 0.0, max_ms, 15)
        n_held = draft.n_nodes if ADVERSARIES[name](at, rng) else 0
        n_held, n_rows = min(n_held, n_tokens - emitted - 1), draft.n_nodes + 1
        ledger.add(1 + n_held, costs.ms(n_rows), costs.ms(1))
        taken_ms += scale * STEEP.ms(n_rows)
        plain_ms += scale * STEEP.ms(1) * (1 + n_held)
        costs.observe(n_rows, scale * STEEP.ms(n_rows))
        emitted, at = emitted + 1 + n_held, at + 1
    allowed = OVERDRAFT + (MAX_CREDIT if credit else 0.0)
    lag = 0.0 if late == 1.0 else 0.03 * plain_ms  # by which the table's rates may err meanwhile
    assert taken_ms - plain_ms <= allowed * plain_ms + STAKE * max(late, 1.0) * 10 + lag + 1e-9


def test_what_was_saved_in_a_request_may_be_lost_in_it() -> None:
    ledger = Ledger()
    ledger.add(8, 20.0, 10.0)
    assert ledger.allowance(10.0, 0.5) == pytest.approx((1 + OVERDRAFT) * 90 + 5 - 20)


def test_what_was_saved_at_low_costs_is_worth_less_at_high_ones() -> None:
    ledger = Ledger()
    ledger.add(8, 20.0, 10.0)
    assert ledger.allowance(20.0, 0.5) == pytest.approx((1 + OVERDRAFT) * 100 + 10 - 20)


@pytest.mark.parametrize(("credit", "lent"), [(50.0, LENT), (0.2, 0.2)])
def test_one_of_many_texts_may_lose_at_once_what_earlier_ones_saved(
    credit: float, lent: float
) -> None:
    ledger = Ledger(credit, LENT)
    at_once = (1 + OVERDRAFT) * 10 + STAKE * 10 + lent * 10
    bit_by_bit = MAX_CREDIT * 10 if credit > LENT else 0.0
    assert ledger.allowance(10.0, STAKE) == pytest.approx(at_once + bit_by_bit)


@pytest.mark.parametrize("n_right", [0, 1, 12])
def test_many_short_texts_lose_no_more_in_all_than_each_may_alone(n_right: int) -> None:
    """Drafts are right in the first texts, and wrong ever after."""
    credit = taken_ms = plain_ms = lost_ms = 0.0
    for i in range(60):
        ledger = Ledger(credit, LENT)
        while ledger.plain_ms < 90:
            draft = verified(chain(15, 0.95), {}, STEEP, 0.0, ledger.allowance(10.0, STAKE), 15)
            n_held = draft.n_nodes if i < n_right else 0
            ledger.add(1 + n_held, STEEP.ms(draft.n_nodes + 1), 10.0)
        saved_ms = ledger.plain_ms - ledger.spent_ms
        credit = min(max(credit + saved_ms / 10, 0.0), HORIZON)
        taken_ms, plain_ms = taken_ms + ledger.spent_ms, plain_ms + ledger.plain_ms
        lost_ms = max(lost_ms, -saved_ms - OVERDRAFT * ledger.plain_ms)
    assert lost_ms <= (STAKE + LENT + MAX_CREDIT * 9) * 10 + 1e-9
    assert taken_ms - plain_ms <= OVERDRAFT * plain_ms + 60 * STAKE * 10
    assert (lost_ms > STAKE * 10) == (n_right > 0)


def test_plain_decoding_is_always_permitted() -> None:
    ledger = Ledger()
    for _ in range(1000):
        ledger.add(1, min(ledger.allowance(10.0, STAKE), 30.0), 10.0)
        assert ledger.allowance(10.0, STAKE) >= 10.0


def test_questions_end_before_drafts_do() -> None:
    ledger = Ledger()
    ledger.add(1, 13.0, 10.0)
    assert ledger.allowance(10.0, ASKING_STAKE) < 10.0 < ledger.allowance(10.0, STAKE)


def test_a_table_with_one_row_has_no_price_for_more() -> None:
    flat = CostTable({1: 10.0})
    draft = verified(chain(15, 0.5), {}, flat, 0.0, 15.0, 100)
    assert draft.n_nodes == MAX_NODES


def test_as_much_is_verified_as_gives_most_tokens_per_millisecond() -> None:
    draft = verified(chain(15, 0.9), {}, STEEP, 0.0, math.inf, 15)
    rates = [sum(0.9**d for d in range(n + 1)) / STEEP.ms(n + 1) for n in range(16)]
    assert draft.n_nodes == max(range(16), key=rates.__getitem__)
    assert draft.rate == pytest.approx(max(rates))
    limited = verified(chain(15, 0.9), {}, STEEP, 0.0, 13.0, 15)
    assert (limited.n_nodes, limited.reason) == (1, IS_LIMIT)
    assert verified([], {}, STEEP, 0.0, math.inf, 15).n_nodes == 0


def test_who_was_wrong_is_believed_less_and_after_a_while_again() -> None:
    trust = {"x": Evidence(1.0)}
    assert verified(chain(4, 0.5), trust, STEEP, 0.0, math.inf, 15).n_nodes > 0
    for _ in range(30):
        trust["x"].observe(0.5, 0.0)
    assert verified(chain(4, 0.5), trust, STEEP, 0.0, math.inf, 15).n_nodes == 0
    for _ in range(400):
        trust["x"].forget()
    assert verified(chain(4, 0.5), trust, STEEP, 0.0, math.inf, 15).n_nodes > 0


def test_a_model_is_asked_as_deep_as_it_pays_to_read_and_draft() -> None:
    sure = DepthAcceptance(0.98)
    costs = CostTable({1: 1.0, 2: 1.12, 4: 1.67, 8: 3.3, 16: 6.6})
    model = ModelCosts(0.38, 0.38)
    deep = levels(sure, model, costs, math.inf, 8, 1.0)
    assert deep.n >= 3
    assert levels(DepthAcceptance(0.3), model, costs, math.inf, 8, 1.0).n == 0
    assert levels(sure, ModelCosts(2.0, 0.38), costs, 1.5, 64, 1.0).reason == IS_LIMIT
    assert levels(sure, model, costs, math.inf, 8, 2.0).n == 0, "others promise more"


def test_what_earlier_texts_say_of_a_model_is_where_a_text_begins() -> None:
    general = DepthAcceptance(0.7)
    text = DepthAcceptance(general=general)
    for _ in range(50):
        text.observe(3, 0)
    assert text.rate(1) < 0.1
    assert DepthAcceptance(general=general).rate(1) < 0.1
    assert general.rate(2) == 0.7, "what was not reached was neither right nor wrong"


def test_looks_at_a_drafter_that_brings_nothing_are_rare_and_cheap() -> None:
    for cost in (0.01, 0.1, 0.5):
        worth, spent = Worth(), 0.0
        for _ in range(2000):
            if worth.is_positive:
                worth.observe(0.0, cost)
                spent += cost
            else:
                worth.rested()
        assert spent <= PURSE + LOOK * 2000 + 2 * cost
        worth.observe(2.0, cost)
        assert worth.is_positive
