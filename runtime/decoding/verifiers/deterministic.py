"""A draft is kept with its share of the remaining probability, however it was proposed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.runtime.decoding.verifiers.verifier import (
    Chance,
    SiblingVerdict,
    TargetChoices,
    Verdict,
    walk,
)
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.sampling.sampling import Survivors

Float64 = npt.NDArray[np.float64]


class Deterministic:
    """Accepts a child with its residual probability, however it was proposed.

    Source: EAGLE (Li et al., 2024), section 3.3, for children that are not samples.
    """

    name = "deterministic"
    is_lossless = True
    is_exact = False

    def verify(self, tree: DraftTree, target: TargetChoices, chance: Chance) -> Verdict:
        def choose(node: int, siblings: Sequence[int]) -> SiblingVerdict:
            return judge_siblings(
                target.distribution(node), siblings, chance, target.position(node)
            )

        return walk(tree, choose)


def judge_siblings(
    distribution: Survivors, siblings: Sequence[int], chance: Chance, position: int
) -> SiblingVerdict:
    """Returns the next token of ``distribution``, by trying ``siblings`` one after the other.

    A sibling is accepted with its share of the remaining probability. A rejected one keeps none.
    """
    residual = distribution.probs()
    for i, token in enumerate(siblings):
        at = index_of(distribution, token)
        if at is None:
            continue
        if chance.accepts(position, i, float(residual[at])):
            return SiblingVerdict(token, i, i + 1)
        residual = without(residual, at)
    return SiblingVerdict(
        int(distribution.ids[chance.draws(position, residual)]), None, len(siblings)
    )


def index_of(distribution: Survivors, token: int) -> int | None:
    """Returns where ``token`` stands in ``distribution``, None when the distribution forbids it."""
    at = int(np.searchsorted(distribution.ids, token))
    return at if at < len(distribution.ids) and distribution.ids[at] == token else None


def without(probs: Float64, at: int) -> Float64:
    """Returns the other probabilities, to sum to 1."""
    rest = probs.copy()
    rest[at] = 0.0
    return scaled(rest, rest)


def scaled(weights: Float64, instead: Float64) -> Float64:
    """Returns ``weights`` to sum to 1; ``instead`` when rounding left nothing of them."""
    total: Any = weights.sum()
    return np.asarray(weights / total) if total > 0 else instead
