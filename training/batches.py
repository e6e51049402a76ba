"""Which texts are learned from together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_ALIKE = 16
"""Batches whose texts are sorted by length."""

_PADDED = 32
"""Tokens by which texts that are alike may differ: else those of few texts would always meet."""


def shuffled_batches(
    lengths: Sequence[int], batch: int, rng: np.random.Generator
) -> list[list[int]]:
    """Returns all texts of these ``lengths``, ``batch`` together, in any order.

    Texts of a batch are as alike in length as a few batches at random allow: little is padded.
    """
    order = rng.permutation(len(lengths)).tolist()
    at_once = _ALIKE * batch
    groups = (order[i : i + at_once] for i in range(0, len(order), at_once))
    ranked = [i for group in groups for i in sorted(group, key=lambda i: lengths[i] // _PADDED)]
    starts = rng.permutation(range(0, len(ranked), batch)).tolist()
    return [ranked[start : start + batch] for start in starts]
