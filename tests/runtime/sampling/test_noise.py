"""Noise depends on seed, position and token id only, and has the distribution it should."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from edgedec.runtime.sampling import noise
from edgedec.runtime.sampling.noise import MAX_GUMBEL, Noise, gumbel_of

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


def test_numbers_of_a_seed_are_the_same_in_every_release() -> None:
    """Texts that were drawn can be drawn again."""
    values = Noise(42).gumbel(7, np.array([0, 1, 151_935]))
    known = ["0x1.a4f757d3386c0p+0", "0x1.3cd5788a55215p-3", "-0x1.2998a6e380c76p-4"]
    np.testing.assert_allclose(values, [float.fromhex(value) for value in known], rtol=1e-14)
    assert Noise(42).uniform(7, 3) == float.fromhex("0x1.b40c5649ca086p-2")


def test_keys_are_those_of_splitmix64() -> None:
    """The first outputs for the seed 0, as its authors' code gives them."""
    golden = 0x9E3779B97F4A7C15
    found = [noise._mix((i * golden) & (2**64 - 1)) for i in (1, 2, 3)]
    assert found == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def chi_square(bins: npt.NDArray[np.int64], n_bins: int) -> float:
    counts = np.bincount(bins, minlength=n_bins)
    expected = len(bins) / n_bins
    return float(((counts - expected) ** 2 / expected).sum())


def uniform(seed: int, position: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.asarray(np.exp(-np.exp(-Noise(seed).gumbel(position, ids))))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_uniform_by_chi_square(seed: int) -> None:
    values = np.concatenate([uniform(seed, position, IDS) for position in range(4)])
    # 255 degrees of freedom: mean 255, standard deviation 22.6; five of them either way.
    assert 142 < chi_square((values * 256).astype(np.int64), 256) < 368


@pytest.mark.parametrize("other", [(0, 1, 0), (0, 0, 1), (1, 0, 0), (0, 1, 1), (1, 1, 2)])
def test_neighbouring_seeds_positions_and_ids_are_independent(other: tuple[int, int, int]) -> None:
    seed, position, id_ = other
    bins = [
        (16 * uniform(5, 9, IDS)).astype(np.int64),
        (16 * uniform(5 + seed, 9 + position, IDS + id_)).astype(np.int64),
    ]
    assert 142 < chi_square(16 * bins[0] + bins[1], 256) < 368


def test_positions_of_one_token_are_uniform() -> None:
    values = np.array([uniform(3, position, np.array([17, 18])) for position in range(8000)])
    pairs = (16 * values).astype(np.int64) @ np.array([16, 1])
    assert 142 < chi_square(pairs, 256) < 368


def test_extreme_bits_are_finite_and_bounded() -> None:
    coarse, fine = np.array([[0, 2**32 - 1], [0, 2**20 - 1]], np.uint32)
    values = gumbel_of(coarse, fine)
    assert np.isfinite(values).all()
    assert 36 < values.max() < MAX_GUMBEL


def test_what_may_reach_a_value_misses_none() -> None:
    values = Noise(1).gumbel(6, IDS)
    for threshold in (-9.0, -3.0, -0.5, 0.0, 2.0, 4.0, 6.0, 9.0, 40.0, np.inf):
        alike = np.full(len(IDS), threshold)
        one_by_one = np.flatnonzero(Noise(1).may_reach(6, IDS, alike))
        for found in (one_by_one, Noise(1).that_may_reach(6, len(IDS), threshold)):
            assert (np.diff(found) > 0).all()
            assert set(np.flatnonzero(values >= threshold)) <= set(found)
            if threshold >= 4:
                assert len(found) <= 1.02 * (values >= threshold - 1e-3).sum() + 4
    each = values.copy()
    each[::2] += 0.1
    assert Noise(1).may_reach(6, IDS, each)[1::2].all()


def test_one_bound_for_all_misses_nothing_of_the_same_bound_for_each() -> None:
    for bound in (-600.0, -3.0, 0.0, 1.5, 7.25, 21.0, 36.7, 60.0, np.inf):
        each = np.flatnonzero(Noise(1).may_reach(6, IDS, np.full(len(IDS), bound)))
        assert set(each) <= set(Noise(1).that_may_reach(6, len(IDS), bound)), bound


@pytest.mark.parametrize("fine", [0, 2**20 - 1])
def test_what_may_reach_a_value_holds_at_the_edge(
    monkeypatch: pytest.MonkeyPatch, fine: int
) -> None:
    rng = np.random.default_rng(0)
    coarse = 2**32 - 1 - rng.integers(0, 3000, 3000).astype(np.uint32)
    values = gumbel_of(coarse, np.full_like(coarse, fine))
    monkeypatch.setattr(noise, "_hash", lambda words, key: coarse.copy())
    assert Noise(1).may_reach(0, np.arange(3000), values).all()
    assert not Noise(1).may_reach(0, np.arange(3000), values + 0.7)[coarse < 2**32 - 4].any()
