"""What a drafter's probabilities are worth: learnt while decoding, from what became of drafts."""

from __future__ import annotations

from bisect import bisect_right

KNOTS = (0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
"""Probabilities at which acceptance is learnt; between them it is interpolated."""

_PRIOR = 4.0
"""Drafts that would have to be observed to weigh as much as the belief a knot begins with."""

_MEMORY = 0.98
"""What one draft leaves of the weight of those before it: some fifty count."""


class AcceptanceCurve:
    """A rising, piecewise linear function from a drafter's probability to acceptance.

    It begins as the identity. Each observed draft counts at the two knots beside its probability,
    by how near they are.
    """

    def __init__(self) -> None:
        self._weights = [0.0] * len(KNOTS)
        self._accepted = [0.0] * len(KNOTS)
        self._rates = list(KNOTS)

    def acceptance(self, probability: float) -> float:
        """Returns the share of drafts of this ``probability`` that are accepted, 0 to 1."""
        low, share = _place(probability)
        return (1 - share) * self._rates[low] + share * self._rates[low + 1]

    def learn(self, drafts: list[tuple[float, bool]]) -> None:
        """Learns from drafts: the drafter's probability of each, and whether it was accepted."""
        for probability, is_accepted in drafts:
            low, share = _place(probability)
            for knot, weight in ((low, 1 - share), (low + 1, share)):
                kept = 1 - weight * (1 - _MEMORY)
                self._weights[knot] = kept * self._weights[knot] + weight
                self._accepted[knot] = kept * self._accepted[knot] + weight * is_accepted
        believed = (
            _PRIOR * knot + accepted for knot, accepted in zip(KNOTS, self._accepted, strict=True)
        )
        weights = [_PRIOR + weight for weight in self._weights]
        self._rates = _rising([b / w for b, w in zip(believed, weights, strict=True)], weights)


def _place(probability: float) -> tuple[int, float]:
    """Returns the knot at or under ``probability``, and how far it is to the next (0 to 1)."""
    probability = min(1.0, max(0.0, probability))
    low = min(bisect_right(KNOTS, probability), len(KNOTS) - 1) - 1
    return low, (probability - KNOTS[low]) / (KNOTS[low + 1] - KNOTS[low])


def _rising(values: list[float], weights: list[float]) -> list[float]:
    """Returns the nearest rising sequence in weighted squares.

    Source: pool-adjacent-violators (Ayer et al., 1955).
    """
    pools: list[tuple[float, float, int]] = []  # mean, weight, number of values
    for value, weight in zip(values, weights, strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, low_weight, n_low), (high, high_weight, n_high) = pools[-2:]
            total = low_weight + high_weight
            mean = (low * low_weight + high * high_weight) / total
            pools[-2:] = [(mean, total, n_low + n_high)]
    return [mean for mean, _, n_values in pools for _ in range(n_values)]
