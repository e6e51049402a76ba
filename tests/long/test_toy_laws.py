"""The distribution of the first two tokens on toy tables: 200,000 rounds of every verifier."""

from __future__ import annotations

import numpy as np
import pytest

from ..runtime.decoding.test_verifier_counts import COUNTED, counted_law
from ..runtime.decoding.verifier_tables import Tables, probs_of, tables_of
from .chi_square import Float64, fit
from .conftest import Note

pytestmark = pytest.mark.long

N_ROUNDS = 10_000
N_TABLES = 20
MIN_P = 1e-3 / N_TABLES


def toy_tables(seed: int) -> tuple[Tables, Tables]:
    """Returns a target and a draft model of 8 to 16 tokens, alike but not equal."""
    rng, n_ids = np.random.default_rng([seed, 2]), 8 + seed % 9
    target = tables_of(lambda: probs_of(rng, 1.5, n_ids), n_ids)
    return target, {path: (row + probs_of(rng, 2, n_ids)) / 2 for path, row in target.items()}


def law_of(first: Tables, second: Tables) -> Float64:
    """Returns the distribution of two tokens, flat: ``first`` gives one, ``second`` the other."""
    probs = first[()]
    return np.concatenate([probs[i] * second[(i,)] for i in range(len(probs))])


@pytest.mark.parametrize("name", COUNTED)
def test_law_by_counting(name: str, note: Note) -> None:
    p_values, wrong, n_accepted = [], [], 0
    for seed in range(N_TABLES):
        target, draft = toy_tables(seed)
        counts, n = counted_law(name, target, draft, 100 + seed, N_ROUNDS)
        n_accepted += n
        p_values.append(fit(counts.ravel(), law_of(target, target)).p_value)
        wrong.append(fit(counts.ravel(), law_of(draft, target)).p_value)
    note(
        f"{N_TABLES} tables of {N_ROUNDS} rounds, {n_accepted} drafted tokens accepted, "
        f"least p = {min(p_values):.3g}; against the draft's distribution {max(wrong):.1g} at most"
    )
    assert min(p_values) > MIN_P
    assert sum(p < 0.5 for p in p_values) in range(3, 18)
    assert max(wrong) < 1e-9
    assert n_accepted > N_TABLES * N_ROUNDS / 10
