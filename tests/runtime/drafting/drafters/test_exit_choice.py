"""Which exit drafts, and how deep: against all there are to choose from, and what it learned."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.runtime.drafting.drafters.exit.exit_choice import ExitChoice

COSTS = {4: 0.15, 8: 0.3, 12: 0.45}


def taught(rates: dict[int, float], n_rounds: int = 60) -> ExitChoice:
    choice, rng = ExitChoice(COSTS), np.random.default_rng(1)
    for _ in range(n_rounds):
        for layer, rate in rates.items():
            choice.learn(layer, int(rng.binomial(4, rate)), 4)
    return choice


def tokens_per_step(rate: float, cost: float, levels: int) -> float:
    """Simulates rounds in which a token holds with probability ``rate`` if those before do."""
    rng = np.random.default_rng(2)
    holds = rng.random((20_000, levels)) < rate
    n_tokens = 1 + np.cumprod(holds, axis=1).sum(axis=1).mean()
    return float(n_tokens / (levels * cost + 1 + 0.05 * levels))


@pytest.mark.parametrize(
    "rates",
    [{4: 0.1, 8: 0.3, 12: 0.9}, {4: 0.6, 8: 0.7, 12: 0.8}, {4: 0.05, 8: 0.9, 12: 0.95}],
    ids=str,
)
def test_the_best_of_all_is_chosen(rates: dict[int, float]) -> None:
    found = taught(rates).choose(8)
    worth = {
        (layer, levels): tokens_per_step(rates[layer], COSTS[layer], levels)
        for layer in COSTS
        for levels in range(1, 9)
    }
    assert worth[found.layer, found.depth] > 0.93 * max(worth.values())


def test_no_deeper_than_asked() -> None:
    assert taught({4: 0.99, 8: 0.1, 12: 0.1}).choose(3).depth == 3


def test_a_change_of_text_shows_within_rounds() -> None:
    choice = taught({4: 0.9, 8: 0.9, 12: 0.9})
    assert choice.choose(8).layer == 4
    for _ in range(10):
        for layer, n_right in ((4, 0), (8, 4), (12, 4)):
            choice.learn(layer, n_right, 4)
    assert choice.choose(8).layer == 8


def test_asking_all_exits_takes_its_share_of_the_time() -> None:
    choice, spent_ms, rounds_ms = ExitChoice(COSTS), 0.0, 0.0
    for _ in range(2000):
        if choice.is_due:
            choice.count_look(7.0)
            spent_ms += 7.0
        choice.count_round(50.0)
        rounds_ms += 50.0
    assert 0.015 < spent_ms / rounds_ms < 0.021
