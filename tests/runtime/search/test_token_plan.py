"""Planned search against all texts that its options allow, and its formula by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from edgedec.runtime.search.token_plan import Completion, PlanConfig, TokenPlan

END, DEPTH, K = 9, 4, 3


class _Toy:
    """Texts of up to `DEPTH` tokens; what a token is likely to be depends on those before it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.completed: list[list[int]] = []

    def options(self, prefix: list[int]) -> list[tuple[int, float]]:
        rng = np.random.default_rng([self._seed, *prefix])
        probs = np.sort(rng.dirichlet(np.ones(5)))[::-1]
        return [(int(t), math.log(p)) for t, p in zip(rng.permutation(5), probs, strict=True)]

    def reward(self, tokens: tuple[int, ...]) -> float:
        return float(np.random.default_rng([self._seed, 99, *tokens]).random())

    def complete(self, beginning: list[int]) -> Completion:
        self.completed.append(beginning)
        tokens, options = list(beginning), [((t, 0.0),) for t in beginning]
        while len(tokens) < DEPTH:
            found = self.options(tokens)
            options.append(tuple(found))
            tokens.append(found[0][0])
        return Completion(tuple(tokens), tuple(options), self.reward(tuple(tokens)))

    def all_texts(self) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for ranks in itertools.product(range(K), repeat=DEPTH):
            tokens: list[int] = []
            for rank in ranks:
                tokens.append(self.options(tokens)[rank][0])
            found.append(tuple(tokens))
        return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("at_once", [1, 4])
def test_given_time_it_completes_each_text_once(seed: int, at_once: int) -> None:
    toy = _Toy(seed)
    plan = TokenPlan(PlanConfig(K), frozenset({END}), DEPTH + 1)
    texts: list[tuple[int, ...]] = []
    while places := [p for p in (plan.next() for _ in range(at_once)) if p is not None]:
        for place in places:
            completion = toy.complete(place.tokens)
            texts.append(completion.tokens)
            plan.learn(place, completion)
    assert texts[0] == toy.all_texts()[0]  # greedy decoding's
    assert len(texts) == len(set(texts)) == K**DEPTH
    assert set(texts) == set(toy.all_texts())


def test_reward_and_probability_decide_where_to_depart() -> None:
    """Worked out by hand, with two options at each of two places and c = 1.

    The greedy text (0, 0) earned 0.2. Its first place has the options 0 (0.6) and 1 (0.4).
    """
    plan = TokenPlan(PlanConfig(2, 1.0), frozenset({END}), 3)
    root = plan.next()
    assert root is not None
    assert root.tokens == []
    options = (((0, math.log(0.6)), (1, math.log(0.4))), ((0, math.log(0.9)), (1, math.log(0.1))))
    plan.learn(root, Completion((0, 0), options, 0.2))
    # Visits of the root: 1 for the completion, 1 for its expansion, so ln 2; then token 0 has
    # 0.2 + 0.6 * sqrt(ln 2) = 0.70 and token 1 has 0.4 * sqrt(ln 2) = 0.33. The text (0, 0) is at
    # its place known, visited and left: token 0 has 0.2 + 0.6 * sqrt(ln 3) / 2 = 0.51 by then, and
    # token 1 0.4 * sqrt(ln 3) = 0.42. Next token 0: 0.2 + 0.6 * sqrt(ln 4) / 3 = 0.44, and token 1
    # 0.4 * sqrt(ln 4) = 0.47.
    place = plan.next()
    assert place is not None
    assert place.tokens == [1]
    plan.learn(place, Completion((1, 0), (((1, 0.0),), options[1]), 0.9))
    third = plan.next()
    assert third is not None
    assert third.tokens == [
        1,
        1,
    ]


def test_no_text_is_ended_where_the_model_goes_on() -> None:
    plan = TokenPlan(PlanConfig(2), frozenset({END}), 9)
    root = plan.next()
    assert root is not None
    plan.learn(
        root, Completion((0, END), (((0, -0.1), (END, -2.0)), ((END, -0.1), (3, -3.0))), 0.0)
    )
    found = plan.next()
    assert found is not None
    assert found.tokens == [0, 3]
    assert plan.next() is None  # all else is under way
