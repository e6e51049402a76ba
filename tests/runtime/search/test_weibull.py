"""Mixtures of two Weibull distributions, against likelihoods computed in full."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.runtime.search.weibull import fit_weibull, share_of_high


def log_likelihood(values: np.ndarray, weights: np.ndarray, shape: float, scale: float) -> float:
    density = (
        np.log(shape / scale) + (shape - 1) * np.log(values / scale) - (values / scale) ** shape
    )
    return float(weights @ density)


@pytest.mark.parametrize("seed", range(5))
def test_no_neighbour_is_likelier(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, weights = 0.3 * rng.weibull(1.7, 40), rng.random(40)
    shape, scale = fit_weibull(values, weights)
    best = log_likelihood(values, weights, shape, scale)
    for a in np.linspace(0.5, 2, 60):
        for b in np.linspace(0.5, 2, 60):
            assert log_likelihood(values, weights, shape * a, scale * b) <= best + 1e-9


def test_finds_the_parameters_that_values_were_drawn_with() -> None:
    values = 0.3 * np.random.default_rng(0).weibull(1.7, 20000)
    assert fit_weibull(values, np.ones(20000)) == pytest.approx((1.7, 0.3), rel=0.02)


def test_tells_two_components_apart() -> None:
    rng = np.random.default_rng(1)
    low, high = 1e-4 * rng.weibull(2, 30), 0.5 * rng.weibull(5, 20)
    share = share_of_high(np.concatenate([low, high]))
    assert (share[:30] < 0.5).all()
    assert (share[30:] > 0.5).all()


def test_equal_values_and_tiny_ones_are_no_trouble() -> None:
    for values in ([0.5, 0.5, 0.5, 0.4], [1.0, 1e-300, 1e-200, 1e-100], [1.0, 0.9, 0.9, 0.9]):
        share = share_of_high(np.array(values))
        assert np.isfinite(share).all()
        assert share.argmax() == int(np.argmax(values))
