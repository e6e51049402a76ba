"""Sampling by rejection: drafts are kept with just the probability that keeps the distribution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.runtime.decoding.verifiers.deterministic import (
    Float64,
    index_of,
    judge_siblings,
    scaled,
    without,
)
from edgedec.runtime.decoding.verifiers.verifier import (
    ALL_KINDS,
    Chance,
    Choice,
    TargetChoices,
    Verdict,
    draft_probs,
    walk,
)
from edgedec.runtime.drafting.draft_tree import DraftTree, SiblingKind
from edgedec.runtime.sampling.sampling import Survivors


class Rejection:
    """Recursive rejection sampling of drawn children; `Deterministic` for children that are not.

    Source: recursive speculative decoding (Jeon et al., 2024), section 3.2; SpecInfer (Miao et
    al., 2023), section 4.3, for independent children.
    """

    name = "rejection"
    is_lossless = True
    is_exact = False
    kinds = ALL_KINDS
    siblings = SiblingKind.WITHOUT_REPLACEMENT

    def verify(self, tree: DraftTree, target: TargetChoices, chance: Chance) -> Verdict:
        def choose(node: int, siblings: Sequence[int]) -> Choice:
            distribution, position = target.distribution(node), target.position(node)
            if not siblings or tree.kind is SiblingKind.DETERMINISTIC:
                return judge_siblings(distribution, siblings, chance, position)
            are_distinct = tree.kind is SiblingKind.WITHOUT_REPLACEMENT
            probs = draft_probs(tree, node)
            return judge_samples(distribution, siblings, probs, are_distinct, chance, position)

        return walk(tree, choose)


VERIFIER = Rejection()


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
            residual = scaled(np.maximum(residual - probs[distribution.ids], 0.0), residual)
        elif at is not None:
            residual = without(residual, at)
        if are_distinct:
            probs = without(probs, token)
    return Choice(int(distribution.ids[chance.draws(position, residual)]), None, len(siblings))
