"""What a draft model's probabilities are worth, learnt from what became of drafts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.drafting.drafters.draft.acceptance_curve import KNOTS, AcceptanceCurve

probabilities = st.floats(0, 1)


def test_the_curve_begins_as_the_identity() -> None:
    curve = AcceptanceCurve()
    for probability in (*KNOTS, 0.123, 0.77, 0.999):
        assert curve.acceptance(probability) == pytest.approx(probability)


@given(drafts=st.lists(st.tuples(probabilities, st.booleans()), max_size=60))
def test_the_curve_rises_and_stays_a_probability(drafts: list[tuple[float, bool]]) -> None:
    curve = AcceptanceCurve()
    for start in range(0, len(drafts), 3):
        curve.learn(drafts[start : start + 3])
    values = [curve.acceptance(i / 200) for i in range(201)]
    assert all(0 <= value <= 1 for value in values)
    assert all(b >= a - 1e-12 for a, b in itertools.pairwise(values))


@pytest.mark.parametrize("rate", [0.1, 0.9])
def test_the_curve_learns_rates(rate: float) -> None:
    curve, rng = AcceptanceCurve(), np.random.default_rng(0)
    for probability in bernoulli(rng, 600):
        curve.learn([(probability, bool(rng.random() < rate))])
    for probability in (0.42, 0.5, 0.58):
        assert curve.acceptance(probability) == pytest.approx(rate, abs=0.12)
    for probability in bernoulli(rng, 600):  # the text changes its character
        curve.learn([(probability, rate < 0.5)])
    assert curve.acceptance(0.5) == pytest.approx(float(rate < 0.5), abs=0.15)


def bernoulli(rng: np.random.Generator, n: int) -> Iterator[float]:
    yield from rng.uniform(0.4, 0.6, n).tolist()
