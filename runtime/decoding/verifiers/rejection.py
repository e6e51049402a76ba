"""Sampling by rejection: drafts are kept with just the probability that keeps the distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.runtime.decoding.verifiers.verifier import (
    ALL_KINDS,
    Chance,
    Choice,
    Target,
    Verdict,
    draft_probs,
    walk,
)
from edgedec.runtime.drafting.draft_tree import DraftTree, SiblingKind
from edgedec.runtime.sampling.sampling import Survivors

Float64 = npt.NDArray[np.float64]


class Deterministic:
    """Accepts a child with its residual probability, however it was proposed.

    Source: EAGLE (Li et al., 2024), section 3.3, for children that are not samples.
    """

    name = "deterministic"
    is_lossless = True
    is_exact = False
    kinds = ALL_KINDS

    def verify(self, tree: DraftTree, target: Target, chance: Chance) -> Verdict:
        def choose(node: int, siblings: Sequence[int]) -> Choice:
            return judge_siblings(
                target.distribution(node), siblings, chance, target.position(node)
            )

        return walk(tree, choose)


class Rejection:
    """Recursive rejection sampling of drawn children; `Deterministic` for children that are not.

    Source: recursive speculative decoding (Jeon et al., 2024), section 3.2; SpecInfer (Miao et
    al., 2023), section 4.3, for independent children.
    """

    name = "rejection"
    is_lossless = True
    is_exact = False
    kinds = ALL_KINDS

    def verify(self, tree: DraftTree, target: Target, chance: Chance) -> Verdict:
        def choose(node: int, siblings: Sequence[int]) -> Choice:
            distribution, position = target.distribution(node), target.position(node)
            if not siblings or tree.kind is SiblingKind.DETERMINISTIC:
                return judge_siblings(distribution, siblings, chance, position)
            are_distinct = tree.kind is SiblingKind.WITHOUT_REPLACEMENT
            probs = draft_probs(tree, node)
            return judge_samples(distribution, siblings, probs, are_distinct, chance, position)

        return walk(tree, choose)


def judge_siblings(
    distribution: Survivors, siblings: Sequence[int], chance: Chance, position: int
) -> Choice:
    """Returns the next token of ``distribution``, by trying ``siblings`` one after the other.

    A sibling is accepted with the probability that is left it; rejected, it is left none.
    """
    residual = distribution.probs()
    for i, token in enumerate(siblings):
        at = index_of(distribution, token)
        if at is None:
            continue
        if chance.accepts(position, i, float(residual[at])):
            return Choice(token, i, i + 1)
        residual = _without(residual, at)
    return Choice(int(distribution.ids[chance.draws(position, residual)]), None, len(siblings))


def judge_samples(
    distribution: Survivors,
    siblings: Sequence[int],
    probs: Float64,
    are_distinct: bool,
    chance: Chance,
    position: int,
) -> Choice:
    """Returns the next token, drawn from ``distribution``, by trying drawn ``siblings``.

    Args:
        probs: The draft distribution of the first sibling. Shapes: [V] float64.
        are_distinct: Each later sibling was drawn from what those before it left.
    """
    residual = distribution.probs()
    for i, token in enumerate(siblings):
        at = index_of(distribution, token)
        target_prob = 0.0 if at is None else float(residual[at])
        draft_prob = float(probs[token])
        # A token that could not have been drawn was proposed some other way: any proposal may
        # be judged by its residual probability alone.
        ratio = target_prob / draft_prob if draft_prob > 0 else target_prob
        if target_prob > 0 and chance.accepts(position, i, min(1.0, ratio)):
            return Choice(token, i, i + 1)
        if draft_prob > 0:
            residual = _scaled(np.maximum(residual - probs[distribution.ids], 0.0), residual)
        elif at is not None:
            residual = _without(residual, at)
        if are_distinct:
            probs = _without(probs, token)
    return Choice(int(distribution.ids[chance.draws(position, residual)]), None, len(siblings))


def index_of(distribution: Survivors, token: int) -> int | None:
    """Returns where ``token`` stands in ``distribution``, None when the distribution forbids it."""
    at = int(np.searchsorted(distribution.ids, token))
    return at if at < len(distribution.ids) and distribution.ids[at] == token else None


def _without(probs: Float64, at: int) -> Float64:
    rest = probs.copy()
    rest[at] = 0.0
    return _scaled(rest, rest)


def _scaled(weights: Float64, instead: Float64) -> Float64:
    """Returns ``weights`` to sum to 1; ``instead`` when rounding left nothing of them."""
    total: Any = weights.sum()
    return np.asarray(weights / total) if total > 0 else instead
