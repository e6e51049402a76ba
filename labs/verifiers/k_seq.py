"""SpecTr's k-SEQ: independent drafts judged by one ratio, near the best any rule can do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgedec.runtime.decoding.verifiers.deterministic import index_of, judge_siblings
from edgedec.runtime.decoding.verifiers.verifier import (
    Chance,
    Choice,
    TargetChoices,
    Verdict,
    draft_probs,
    walk,
)
from edgedec.runtime.drafting.draft_tree import DraftTree, SiblingKind
from edgedec.runtime.sampling.sampling import Survivors

Float64 = npt.NDArray[np.float64]

_N_BISECTIONS = 40


class KSeq:
    """Accepts independent drafts with the k-SEQ rule.

    Source: SpecTr (Sun et al., 2023), algorithm 2.
    """

    name = "k-seq"
    is_lossless = True
    is_exact = False
    kinds = frozenset({SiblingKind.INDEPENDENT})
    siblings = SiblingKind.INDEPENDENT

    def verify(self, tree: DraftTree, target: TargetChoices, chance: Chance) -> Verdict:
        def choose(node: int, siblings: Sequence[int]) -> Choice:
            distribution, position = target.distribution(node), target.position(node)
            if not siblings:
                return judge_siblings(distribution, siblings, chance, position)
            return judge(distribution, siblings, draft_probs(tree, node), chance, position)

        return walk(tree, choose)


VERIFIER = KSeq()


def judge(
    distribution: Survivors, siblings: Sequence[int], probs: Float64, chance: Chance, position: int
) -> Choice:
    """Returns the next token, drawn from ``distribution``, by trying samples of ``probs``.

    Shapes: probs [V] float64.
    """
    target_probs, n = distribution.probs(), len(siblings)
    rho = find_rho(target_probs, probs[distribution.ids], n)
    for i, token in enumerate(siblings):
        at = index_of(distribution, token)
        if at is None or not probs[token] > 0:
            continue
        ratio = float(target_probs[at] / (rho * probs[token]))
        if chance.accepts(position, i, min(1.0, ratio)):
            return Choice(token, i, i + 1)
    common = np.minimum(probs[distribution.ids], target_probs / rho)
    overlap = float(common.sum())
    n_fold = (1 - (1 - overlap) ** n) / overlap if overlap > 0 else float(n)
    residual = np.maximum(target_probs - common * n_fold, 0.0)
    total = residual.sum()
    residual = residual / total if total > 0 else target_probs
    return Choice(int(distribution.ids[chance.draws(position, residual)]), None, n)


def find_rho(target_probs: Float64, probs: Float64, n: int) -> float:
    """Returns the least rho in [1, n], nearly, for which the k-SEQ rule keeps the distribution.

    Shapes: target_probs, probs [N] float64 over the same tokens.
    """

    def keeps_law(rho: float) -> bool:
        overlap = float(np.minimum(probs, target_probs / rho).sum())
        return 1 - (1 - overlap) ** n <= rho * overlap

    low, high = 1.0, float(n)
    if keeps_law(low):
        return low
    for _ in range(_N_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if keeps_law(middle) else (middle, high)
    return high
