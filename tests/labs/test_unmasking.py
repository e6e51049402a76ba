"""Rules that decide several masked tokens by one pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.labs.unmasking import localleap
from edgedec.runtime.config import UnmaskConfig
from edgedec.runtime.decoding.unmasking import Guesses, MaskedModel
from edgedec.runtime.sequences.row_stats import RowStats

MODEL = MaskedModel(0)


def guesses_of(places: Sequence[int], probabilities: Sequence[Sequence[float]]) -> Guesses:
    """Returns what a pass says that gives the tokens of each place these probabilities."""
    rows = np.log(np.maximum(np.array(probabilities), 1e-30)).astype(np.float32)
    tokens = rows[:, 1:].argmax(axis=1) + 1
    sure = np.exp(rows[np.arange(len(places)), tokens]).astype(np.float64)
    return Guesses(places, tokens.tolist(), sure, RowStats.of(rows))


def sure_of(token: int, probability: float, size: int = 5) -> list[float]:
    row = [(1 - probability) / (size - 1)] * size
    row[token] = probability
    return row


class TestLocalLeap:
    RULE = UnmaskConfig(rule="localleap", anchor=0.9, relaxed=0.7, radius=2)

    def test_likely_tokens_near_anchors(self) -> None:
        places = [3, 4, 5, 6, 8, 9, 12]
        sizes = [0.75, 0.6, 0.71, 0.95, 0.8, 0.8, 0.89]
        guesses = guesses_of(places, [sure_of(1 + i % 4, p) for i, p in enumerate(sizes)])
        found = localleap.maker(self.RULE, MODEL)().choose(guesses, 1, 0.0)
        # 6 is an anchor; of those at most two places from it 4 is too unlikely; 9 is too far.
        assert found == {5: 3, 6: 4, 8: 1}

    def test_without_an_anchor_the_likeliest(self) -> None:
        guesses = guesses_of([3, 4, 5], [sure_of(1, 0.8), sure_of(2, 0.85), sure_of(3, 0.7)])
        assert localleap.maker(self.RULE, MODEL)().choose(guesses, 1, 0.0) == {4: 2}
