"""Growing trees at their likeliest places, against enumeration; learning from what came."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.drafting.best_first import MAX_PROBABILITY, AcceptanceRates, BestFirst, Option
from edgedec.runtime.drafting.drafter import Budget

from .drafters.rounds import check_tree, paths_of, probability_of

Path = tuple[int, ...]
SHARES = st.lists(st.floats(0.01, 1.0), min_size=6, max_size=6)


def options_of(shares: Sequence[float], path: Path) -> list[Option[Path]]:
    """Returns two options after any path, their shares taken from ``shares`` in turn."""
    start = sum(path) + len(path)
    return [
        Option(token, shares[(start + token) % len(shares)], token, (*path, token))
        for token in (0, 1)
    ]


@given(
    shares=SHARES,
    n_nodes=st.integers(0, 12),
    depth=st.integers(0, 4),
    min_value=st.sampled_from([0.0, 0.05, 0.3]),
)
def test_takes_the_most_valuable_nodes(
    shares: list[float], n_nodes: int, depth: int, min_value: float
) -> None:
    growth: BestFirst[Path] = BestFirst("toy", AcceptanceRates([0.9, 0.4]))
    budget = Budget(n_nodes, depth, min_value)
    tree = growth.grow(5, options_of(shares, ()), lambda path, _: options_of(shares, path), budget)
    values: dict[Path, float] = {(): 1.0}
    frontier: list[Path] = [()]
    for _ in range(depth):
        children = [option for path in frontier for option in options_of(shares, path)]
        for option in children:
            probability = growth.probability(option.share, option.kind)
            values[option.state] = values[option.state[:-1]] * probability
        frontier = [option.state for option in children]
    del values[()]
    check_tree(tree, budget, "toy")
    worthy = sorted((v for v in values.values() if v >= min_value), reverse=True)
    assert sorted(tree.values(), reverse=True) == pytest.approx(worthy[:n_nodes])


def grow(growth: BestFirst[Path], n_tokens: int = 5) -> float:
    """Returns the probability of token 0 at the root, from a tree of tokens 0 and 1."""
    tree = growth.grow(
        n_tokens,
        [Option(0, 0.6, 0, ()), Option(1, 0.4, 1, ())],
        lambda path, depth: [Option(2, 1.0, 2, ())],
        Budget(8, 2),
    )
    assert paths_of(tree) == {(0,), (1,), (0, 2), (1, 2)}
    return probability_of(tree, 0)


def test_what_came_true_is_believed_more_and_what_did_not_less() -> None:
    growth: BestFirst[Path] = BestFirst("toy", AcceptanceRates([0.5, 0.5, 0.5]))
    before = [growth.probability(1.0, kind) for kind in range(3)]
    for _ in range(10):
        grow(growth)
        growth.learn(5, [0, 9])
    after = [growth.probability(1.0, kind) for kind in range(3)]
    assert after[0] > before[0]
    assert after[1] < before[1]
    assert after[2] < before[2]


def test_nodes_after_a_wrong_one_are_not_judged() -> None:
    growth: BestFirst[Path] = BestFirst("toy", AcceptanceRates([0.5, 0.5, 0.5]))
    grow(growth)
    growth.learn(5, [7, 2])
    assert growth.probability(1.0, 2) == 0.5
    assert growth.probability(1.0, 0) < 0.5


def test_a_tree_is_judged_once_and_only_where_it_was_grown() -> None:
    growth: BestFirst[Path] = BestFirst("toy", AcceptanceRates([0.5, 0.5, 0.5]))
    grow(growth)
    growth.learn(6, [0])
    assert growth.probability(1.0, 0) == 0.5
    growth.learn(5, [0])
    assert growth.probability(1.0, 0) == 0.5
    grow(growth)
    growth.learn(5, [0])
    once = growth.probability(1.0, 0)
    growth.learn(5, [0])
    assert growth.probability(1.0, 0) == once > 0.5


def test_estimates_meet_the_observed_frequency() -> None:
    growth: BestFirst[Path] = BestFirst("toy", AcceptanceRates([0.5, 0.5, 0.5]))
    for i in range(400):
        grow(growth)
        growth.learn(5, [0 if i % 4 == 0 else 1])
    assert grow(growth) == pytest.approx(0.25, abs=0.05)


def test_nothing_is_certain() -> None:
    growth: BestFirst[Path] = BestFirst("toy", AcceptanceRates([0.9, 0.9, 0.9]))
    for _ in range(300):
        grow(growth)
        growth.learn(5, [0, 2])
    assert growth.probability(1.0, 0) == MAX_PROBABILITY
