"""The search for sub-layers that a model can draft without (EvoPress), and what a set is worth."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

MAX_LEVELS = 8
"""Tokens that one round may draft."""

N_OFFSPRING, N_FINALISTS = 6, 2
_MAX_SWAPS = 3
_SHARES = (0.15, 0.25, 0.35, 0.45)  # of all sub-layers

SkipKey = tuple[int, ...]
"""Sub-layers that are left out, in order: 2i is the attention of layer i, 2i + 1 its MLP."""

Acceptance = Callable[[SkipKey, bool], float]
"""Share of tokens that hold with these left out; of few texts, or of all where the flag says so."""


@dataclass(frozen=True)
class StepCosts:
    """What passes cost here, in passes of the whole model over one row.

    attention, mlp: what one of each adds. rows: by number of rows, from 1.
    """

    attention: float
    mlp: float
    rows: Sequence[float]

    def of(self, off: SkipKey) -> float:
        """Returns the cost of a pass over one row without ``off``."""
        n_mlp = sum(i % 2 for i in off)
        return max(1.0 - n_mlp * self.mlp - (len(off) - n_mlp) * self.attention, 0.01)


def speedup(acceptance: float, cost: float, rows: Sequence[float]) -> float:
    """Returns tokens per time over plain decoding, at the depth of drafts that gives most.

    Args:
        acceptance: Of a drafted token, where those before it hold.
        cost: Of a drafting pass; ``rows``: of a verifying one, by rows from 1; in plain steps.
    """
    best, expected, reached = 0.0, 1.0, 1.0
    for levels in range(1, min(MAX_LEVELS, len(rows) - 1) + 1):
        reached *= acceptance
        expected += reached
        best = max(best, expected / (levels * cost + rows[levels]))
    return best


def budgets(n_layers: int) -> list[int]:
    """Returns how many sub-layers to leave out: what is searched, one by one."""
    # The first and the last layer stay whole: hardly anything holds without them.
    most = 2 * (n_layers - 2)
    return sorted({max(1, round(share * 2 * n_layers)) for share in _SHARES if most > 0} - {0})


def search(n_layers: int, accept: Acceptance, costs: StepCosts, seed: int) -> Iterator[SkipKey]:
    """Yields the best set of each budget, and again whenever there is a better one; never ends.

    It begins with what a sub-layer costs by itself. Then every generation swaps one to three of a
    budget's set in some offspring, tries all of them on few texts, the best on all, and keeps the
    best of these and their parent.

    Source: EvoPress (Sieberling et al., 2024), algorithm 1; its objective here is `speedup`.
    """
    rng = random.Random(seed)
    inner = range(2, 2 * (n_layers - 1))

    def worth(off: SkipKey, is_final: bool) -> float:
        return speedup(accept(off, is_final), costs.of(off), costs.rows)

    alone = sorted(inner, key=lambda i: -worth((i,), False))
    parents = {n: tuple(sorted(alone[:n])) for n in budgets(n_layers) if n < len(inner)}
    for parent in parents.values():
        accept(parent, True)
        yield parent
    while parents:
        for n, parent in parents.items():
            offspring = {_mutated(parent, inner, rng) for _ in range(N_OFFSPRING)}
            tried = sorted(offspring, key=lambda off: (-worth(off, False), off))
            finalists = [parent, *tried[:N_FINALISTS]]
            parents[n] = max(finalists, key=lambda off: worth(off, True))
            yield parents[n]


def _mutated(parent: SkipKey, inner: range, rng: random.Random) -> SkipKey:
    """Returns ``parent`` with one to three sub-layers swapped, most often one."""
    left_in = [i for i in inner if i not in parent]
    n_swaps = min(rng.randint(1, _MAX_SWAPS), rng.randint(1, _MAX_SWAPS), len(parent))
    gone = rng.sample(parent, n_swaps)
    added = rng.sample(left_in, min(n_swaps, len(left_in)))
    return tuple(sorted({*parent, *added} - set(gone[: len(added)])))
