"""Rules that decide several masked tokens by one pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgedec.labs.unmasking import ccd, localleap, prophet
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


class TestProphet:
    RULE = UnmaskConfig(rule="prophet", early=3.0, middle=2.0, late=1.0)

    @pytest.mark.parametrize(
        ("gap", "progress", "n_decided"),
        [
            (2.5, 0.0, 1), (3.1, 0.0, 2), (1.9, 0.4, 1), (2.1, 0.4, 2), (0.9, 0.9, 1),
            (1.1, 0.7, 2),
        ],
    )  # fmt: skip
    def test_all_at_once_when_the_best_are_far_ahead(
        self, gap: float, progress: float, n_decided: int
    ) -> None:
        rows = np.array([[9.0, gap + 1, 0, 0], [0, 0, gap - 1, 0]], np.float32)  # 0: the mask
        guesses = Guesses([4, 5], [1, 2], np.array([0.2, 0.3]), RowStats.of(rows))
        found = prophet.maker(self.RULE, MODEL)().choose(guesses, 1, progress)
        assert found == {4: 1, 5: 2} if n_decided == 2 else {5: 2}


class TestCoherentContext:
    RULE = UnmaskConfig(rule="ccd", history=2, entropy=0.3)

    def test_what_passes_agree_on_comes_first(self) -> None:
        """Place 4 is surer in the latest pass, but was another token in the one before."""
        rule = ccd.maker(self.RULE, MODEL)()
        rule.choose(guesses_of([3, 4, 5], [sure_of(1, 0.7), sure_of(2, 0.8), sure_of(4, 1)]), 1, 0)
        now = guesses_of([3, 4], [sure_of(1, 0.7), sure_of(3, 0.9)])
        assert rule.choose(now, 1, 0.5) == {3: 1}

    def test_the_token_is_that_of_the_average(self) -> None:
        rule = ccd.maker(self.RULE, MODEL)()
        rule.choose(guesses_of([3, 4], [sure_of(1, 0.9), sure_of(2, 1)]), 1, 0)
        assert rule.choose(guesses_of([3], [sure_of(2, 0.6)]), 1, 0.5) == {3: 1}

    def test_the_limit_counts_when_the_history_is_full(self) -> None:
        rows = [sure_of(1, 0.99), sure_of(2, 0.98), sure_of(3, 0.6)]
        rule = ccd.maker(self.RULE, MODEL)()
        assert rule.choose(guesses_of([3, 4, 5], rows), 1, 0) == {3: 1}
        assert rule.choose(guesses_of([4, 5], rows[1:]), 1, 0) == {4: 2}
        rule = ccd.maker(self.RULE, MODEL)()
        last = [3, 4, 5, 6]
        rule.choose(guesses_of(last, [*rows, sure_of(4, 1)]), 1, 0)
        assert rule.choose(guesses_of(last[:3], rows), 1, 0) == {3: 1, 4: 2}

    def test_entropy_is_that_of_passes_and_their_disagreement(self) -> None:
        """H(mean) = mean of H + mutual information of token and pass."""
        p, q = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.2, 0.7])
        mean = ccd.mean_of([dict(enumerate(p)), dict(enumerate(q))])
        both = (p + q) / 2
        inner = -(p @ np.log(p) + q @ np.log(q)) / 2
        information = (p @ np.log(p / both) + q @ np.log(q / both)) / 2
        assert ccd.entropy_of(mean) == pytest.approx(inner + information)
        assert ccd.entropy_of({4: 1.0}) == pytest.approx(0)
