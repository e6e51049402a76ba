"""Verifiers with the random numbers decoding really uses: their distributions by counting."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgedec.runtime.decoding.verifiers import find_verifier
from edgedec.runtime.decoding.verifiers.verifier import NoiseChance
from edgedec.runtime.sampling.noise import Noise

from .verifier_tables import (
    Float64,
    Tables,
    TableTarget,
    drawn_tree,
    probs_of,
    tables_of,
)

N_IDS = 8
N_ROUNDS = 5000


def chi_square_limit(freedom: int) -> float:
    """Returns what one in a thousand exceeds, by Wilson and Hilferty's approximation."""
    spread = 2 / (9 * freedom)
    return freedom * float((1 - spread + 3.09 * math.sqrt(spread)) ** 3)


def chi_square(counts: Float64, probs: Float64) -> tuple[float, int]:
    """Returns the statistic and its degrees of freedom; cells expecting under 5 are merged."""
    expected = probs.ravel() * counts.sum()
    is_small = expected < 5
    observed = np.append(counts.ravel()[~is_small], counts.ravel()[is_small].sum())
    expected = np.append(expected[~is_small], expected[is_small].sum())
    if expected[-1] < 5:
        observed = np.append(observed[:-2], observed[-2:].sum())
        expected = np.append(expected[:-2], expected[-2:].sum())
    return float(((observed - expected) ** 2 / expected).sum()), len(expected) - 1


COUNTED = ("shared-gumbel", "deterministic")


def counted_law(
    name: str,
    target: Tables,
    draft: Tables,
    seed: int,
    n_rounds: int = N_ROUNDS,
) -> tuple[Float64, int]:
    """Returns how often each pair of first tokens came, one seed a round, and the acceptances."""
    rng = np.random.default_rng([seed, 1])
    n_ids = len(target[()])
    counts, n_accepted = np.zeros((n_ids, n_ids)), 0
    uniforms = iter(rng.random(20 * n_rounds).tolist())

    def draw_one(probs: Float64) -> int:
        return int(np.searchsorted(probs.cumsum(), next(uniforms) * probs.sum(), side="right"))

    for i in range(n_rounds):
        noise = Noise(seed * n_rounds + i)
        tree = drawn_tree(draft, (2, 1), draw_one)
        verdict = find_verifier(name).verify(
            tree, TableTarget(target, tree, noise), NoiseChance(noise)
        )
        emitted = [*(tree.nodes[j].token for j in verdict.path), verdict.next_token]
        if len(emitted) == 1:
            emitted.append(draw_one(target[(emitted[0],)]))
        counts[emitted[0], emitted[1]] += 1
        n_accepted += len(verdict.path)
    return counts, n_accepted


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", COUNTED)
def test_law_by_counting(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = tables_of(lambda: probs_of(rng, 1.5, N_IDS), N_IDS)
    draft = {path: 0.5 * (row + probs_of(rng, 2, N_IDS)) for path, row in target.items()}
    counts, n_accepted = counted_law(name, target, draft, seed)
    assert N_ROUNDS / 10 < n_accepted < 2 * N_ROUNDS
    distribution = np.stack([target[()][i] * target[(i,)] for i in range(N_IDS)])
    statistic, freedom = chi_square(counts, distribution)
    assert freedom > 20
    assert statistic < chi_square_limit(freedom)
    wrong = np.stack([draft[()][i] * target[(i,)] for i in range(N_IDS)])
    assert chi_square(counts, wrong)[0] > chi_square_limit(freedom)


def test_uniforms_are_uniform_and_independent_of_one_another() -> None:
    n, n_bins = 20_000, 8
    values = np.array(
        [[Noise(1).uniform(position, purpose) for purpose in (0, 1)] for position in range(n)]
    )
    assert 0 < values.min() < values.max() < 1
    cells = (values * n_bins).astype(int)
    counts = np.zeros((n_bins, n_bins))
    np.add.at(counts, (cells[:, 0], cells[:, 1]), 1)
    statistic, freedom = chi_square(counts, np.full((n_bins, n_bins), n_bins**-2.0))
    assert statistic < chi_square_limit(freedom)
    gumbel = np.array([Noise(1).gumbel(position, np.arange(1))[0] for position in range(n)])
    assert abs(np.corrcoef(gumbel, values[:, 0])[0, 1]) < 4 / math.sqrt(n)
    assert Noise(1).uniform(5, 2) == Noise(1).uniform(5, 2) != Noise(2).uniform(5, 2)
