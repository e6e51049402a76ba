"""Which exit drafts next, and how deep, by what each would have guessed of late.

Source: DEL (Entezari Zarch et al., 2025): expected tokens of a round over what it takes, for every
exit and length, from decayed counts of shadow tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from edgedec.runtime.drafting.best_first import AcceptanceRates

MAX_DEPTH = 8
_PRIOR = 0.6
_ROW = 0.05  # of a whole pass over one row is what each further row of a pass takes
_MAX_SHARE = 0.02  # of the time of all rounds may go into finding out


class ExitDepth(NamedTuple):
    """An exit, and the most levels worth drafting with it."""

    layer: int
    depth: int


class ExitChoice:
    """What is known of the exits of one model."""

    def __init__(self, costs: Mapping[int, float]) -> None:
        """costs: of a drafted level by exit, in whole passes over one row."""
        self._costs = dict(costs)
        self._index_of = {layer: i for i, layer in enumerate(costs)}
        self._rates = AcceptanceRates([_PRIOR] * len(self._costs))
        self._spare_ms = self._look_ms = 0.0

    def rate(self, layer: int) -> float:
        """Returns how often the exit behind ``layer`` guesses what the model says."""
        return self._rates.probability(1.0, self._index_of[layer])

    def choose(self, depth: int) -> ExitDepth:
        """Returns the exit and length that promise most tokens for their time.

        depth: most levels, at least 1.
        """
        depths = range(1, min(depth, MAX_DEPTH) + 1)
        choices = [ExitDepth(layer, levels) for layer in self._costs for levels in depths]
        return max(choices, key=self._worth)

    def learn(self, layer: int, n_right: int, n_asked: int) -> None:
        """Takes in how many of the last tokens the exit behind ``layer`` would have guessed."""
        for i in range(n_asked):
            self._rates.learn(1.0, self._index_of[layer], i < n_right)

    def count_round(self, ms: float) -> None:
        """Takes in what a round took."""
        self._spare_ms += _MAX_SHARE * ms

    def count_look(self, ms: float) -> None:
        """Takes in what it took to ask all exits."""
        self._spare_ms -= ms
        self._look_ms = ms

    @property
    def is_due(self) -> bool:
        """Whether asking all exits again takes no more than its share of the time."""
        return self._spare_ms >= self._look_ms

    def _worth(self, choice: ExitDepth) -> float:
        rate, levels = self.rate(choice.layer), choice.depth
        n_tokens = sum(rate**depth for depth in range(levels + 1))
        return n_tokens / (levels * self._costs[choice.layer] + 1 + _ROW * levels)
