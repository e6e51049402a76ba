"""CCD: what several passes agree on is decided, not what the latest one says.

The distributions of a place over the latest passes are averaged. The entropy of the average is that
of a pass, plus the mutual information of token and pass: how much the passes disagree.
Source: Coherent Contextual Decoding (arXiv 2512.02044). Of each distribution the eight likeliest
tokens are kept, and the rest counts as one more.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from edgedec.runtime.config.unmasking import UnmaskConfig
from edgedec.runtime.decoding.unmasking import Guesses, MaskedModel, likeliest

Distribution = Mapping[int, float]
"""Token -> probability, of the likeliest ones."""


class CoherentContext:
    """Decides as many as are due, of the smallest entropy, and all that are below a limit.

    The limit counts for places that all the passes of the history were about.
    """

    def __init__(self, mask_token: int, n_passes: int, limit: float) -> None:
        self._mask_token = mask_token
        self._limit = limit
        self._passes: deque[dict[int, Distribution]] = deque(maxlen=n_passes)

    def choose(self, guesses: Guesses, n_due: int, progress: float) -> Mapping[int, int]:
        self._passes.append(self._distributions(guesses))
        histories = [self._history(place) for place in guesses.places]
        means = [mean_of(history) for history in histories]
        entropies = np.array([entropy_of(mean) for mean in means])
        is_full = np.array([len(history) == self._passes.maxlen for history in histories])
        chosen = {*likeliest(-entropies, n_due)}
        chosen |= {*np.flatnonzero(is_full & (entropies < self._limit)).tolist()}
        return {
            guesses.places[i]: max(means[i], key=lambda token: means[i][token])
            for i in sorted(chosen)
        }

    def _history(self, place: int) -> list[Distribution]:
        return [seen[place] for seen in self._passes if place in seen]

    def _distributions(self, guesses: Guesses) -> dict[int, Distribution]:
        stats = guesses.stats
        probabilities = np.exp(stats.top_logits - stats.log_sum_exp[:, None])
        rows = zip(stats.top_ids.tolist(), probabilities.tolist(), strict=True)
        return {
            place: {
                token: probability
                for token, probability in zip(*row, strict=True)
                if token not in (self._mask_token, -1)
            }
            for place, row in zip(guesses.places, rows, strict=True)
        }


def mean_of(history: Sequence[Distribution]) -> Distribution:
    """Returns the average of distributions; a token that one does not list has 0 there."""
    total: Counter[int] = Counter()
    for distribution in history:
        total.update(distribution)
    return {token: mass / len(history) for token, mass in total.items()}


def entropy_of(distribution: Distribution) -> float:
    """Returns the entropy, all tokens that are not listed counting as one. Units: nats."""
    listed = np.array([*distribution.values()])
    masses = np.append(listed, max(0.0, 1.0 - listed.sum()))
    masses = masses[masses > 0]
    return float(-(masses * np.log(masses)).sum())


def maker(setting: UnmaskConfig, model: MaskedModel) -> Callable[[], CoherentContext]:
    """Returns what makes the rule of an output."""
    return partial(CoherentContext, model.mask_token, setting.history, setting.entropy)
