"""Typical acceptance: keeps whatever the target model finds plausible. Not lossless."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from edgedec.runtime.decoding.verifiers.deterministic import index_of
from edgedec.runtime.decoding.verifiers.verifier import Chance, TargetChoices, Verdict
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.sampling.sampling import Survivors


class Typical:
    """Accepts tokens above ``min(epsilon, delta * exp(-entropy))``, on the longest path of them.

    Of equally long paths the likeliest is taken. The token after it is plain decoding's choice.

    Source: Medusa (Cai et al., 2024), section 2.3.1.
    """

    name = "typical"
    is_lossless = False
    is_exact = False

    def __init__(self, epsilon: float = 0.09, delta: float = 0.3) -> None:
        self._epsilon = epsilon
        self._delta = delta

    def verify(self, tree: DraftTree, target: TargetChoices, chance: Chance) -> Verdict:
        distribution = cache(target.distribution)
        log_probs, evaluated = {ROOT: 0.0}, []  # accepted nodes; nodes after accepted ones
        for i, node in enumerate(tree.nodes):
            if node.parent not in log_probs:
                continue
            evaluated.append(i)
            prob = self._typical_prob(distribution(node.parent), node.token)
            if prob is not None:
                log_probs[i] = log_probs[node.parent] + math.log(prob)
        last = max(log_probs, key=lambda i: (len(tree.path(i)), log_probs[i]))
        is_leaf = not tree.children(last)
        path = tuple(tree.path(last))
        return Verdict(path, target.pick(last), is_leaf, frozenset(evaluated))

    def _typical_prob(self, distribution: Survivors, token: int) -> float | None:
        """Returns the probability of ``token`` if it is typical of ``distribution``."""
        at = index_of(distribution, token)
        if at is None:
            return None
        probs = distribution.probs()
        entropy = -float((probs * np.log(np.maximum(probs, 1e-300))).sum())
        is_typical = probs[at] > min(self._epsilon, self._delta * math.exp(-entropy))
        return float(probs[at]) if is_typical else None
