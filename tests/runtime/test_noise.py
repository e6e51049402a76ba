"""Noise depends on seed, position and token id only, and has the law it should."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.runtime.noise import MAX_GUMBEL, Noise, bits_above, gumbel_of

IDS = np.arange(50_000)


def test_value_of_a_token_does_not_depend_on_its_neighbours() -> None:
    noise = Noise(7)
    whole = noise.gumbel(3, IDS)
    some = np.array([49_999, 5, 0])
    np.testing.assert_array_equal(noise.gumbel(3, some), whole[some])


@pytest.mark.parametrize(("seed", "position"), [(7, 4), (8, 3), (2**63, 3)])
def test_seed_and_position_change_every_value(seed: int, position: int) -> None:
    same = Noise(7).gumbel(3, IDS) == Noise(seed).gumbel(position, IDS)
    assert same.mean() < 1e-3


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_uniform_by_chi_square(seed: int) -> None:
    bits = np.concatenate([Noise(seed).bits(position, IDS) for position in range(4)])
    counts = np.bincount((bits >> np.uint64(44)).astype(np.int64), minlength=256)
    expected = len(bits) / 256
    statistic = float(((counts - expected) ** 2 / expected).sum())
    # 255 degrees of freedom: mean 255, standard deviation 22.6; five of them either way.
    assert 142 < statistic < 368


def test_extreme_bits_are_finite_and_bounded() -> None:
    values = gumbel_of(np.array([0, 2**52 - 1], np.uint64))
    assert np.isfinite(values).all()
    assert values.max() < MAX_GUMBEL


def test_bits_above_never_refutes_a_larger_value() -> None:
    rng = np.random.default_rng(0)
    bits = np.concatenate(
        [rng.integers(0, 2**52, 2000, np.uint64), 2**52 - 1 - rng.integers(0, 99, 99, np.uint64)]
    )
    for threshold in (-3.0, -0.5, 0.0, 2.0, 9.0, 30.0, 36.0, 36.7):
        larger = bits[gumbel_of(bits) >= threshold]
        assert (larger >= bits_above(threshold - 1e-9)).all()
