"""Samples of texts that follow a grammar, in the proportions in which the model would write them.

A mask takes the forbidden tokens away where they would come. So it favours beginnings after which
the model would have left the grammar: their few grammatical endings get the probability of all.
Here a token counts by its probability times a bound: how likely a grammatical text follows, at
most. Each try lowers the bounds along its way. A try is accepted with the probability that the
bounds fell by, which makes accepted tries exact samples of the model's grammatical texts.

Source: ASAp (Park et al., 2024, arXiv:2405.21047) for the bounds and their updates. A try has the
probability ``P(text) / bound(root) * product(old bound / new bound)`` over its inner beginnings, so
that the inverse of the product, as the chance to accept, leaves ``P(text)`` up to a constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.runtime.sampling.token_mask import Allowed

Float64 = npt.NDArray[np.float64]


class _Beginning:
    """What is known of the texts that begin in one way.

    bound: how likely a grammatical text follows, at most. n_allowed: the probability of the tokens
    that the grammar allows next, None before a row of logits came. log_total: of that row. after:
    the tokens that were taken, with their probabilities.
    """

    __slots__ = ("after", "allowed", "bound", "log_total")

    def __init__(self) -> None:
        self.bound = 1.0
        self.allowed: float | None = None
        self.log_total = 0.0
        self.after: dict[int, tuple[float, _Beginning]] = {}

    def total(self) -> float:
        """Returns how likely a grammatical text follows, at most, by what is known now."""
        if self.allowed is None:
            return self.bound
        lost = math.fsum(share * (1.0 - child.bound) for share, child in self.after.values())
        return max(self.allowed - lost, 0.0)


class Alignment:
    """The bounds that tries have found, and the way of the try in progress."""

    def __init__(self, temperature: float) -> None:
        """temperature: of the model's distribution, which nothing else may change."""
        self._temperature = temperature
        self._root = _Beginning()
        self._way = [self._root]

    @property
    def bound(self) -> float:
        """How likely the model writes a grammatical text when nothing holds it, at most."""
        return self._root.bound

    def begin(self) -> None:
        """A new try starts."""
        self._way = [self._root]

    def weighed(
        self, path: Sequence[int], row: npt.NDArray[Any], allowed: Allowed | None, values: Float64
    ) -> Float64:
        """Returns the edited logits ``values`` with tokens weighed by their bounds.

        path: drafted tokens behind the accepted ones. row: the model's logits.

        Shapes: row, allowed, values [V].
        """
        beginning = self._at(path)
        if beginning is None:  # nothing is known behind it either
            return values
        if beginning.allowed is None:
            scaled = row.astype(np.float64) / self._temperature
            weights = np.exp(scaled - scaled.max())
            total = float(weights.sum())
            kept = total if allowed is None else float(weights[allowed].sum())
            beginning.log_total = float(scaled.max()) + math.log(total)
            beginning.allowed = kept / total
        for token, (_, child) in beginning.after.items():
            if child.bound < 1.0:
                values[token] += self._temperature * math.log(max(child.bound, 1e-300))
        return values

    def chose(self, path: Sequence[int], token: int, logit: float) -> None:
        """Records the token that was chosen behind ``path``, and its logit in the model's row."""
        beginning = self._at(path)
        if beginning is not None and token not in beginning.after:
            share = math.exp(logit / self._temperature - beginning.log_total)
            beginning.after[token] = share, _Beginning()

    def accept(self, token: int) -> None:
        """Records ``token`` as emitted."""
        self._way.append(self._way[-1].after[token][1])

    def end(self) -> float:
        """Ends a whole try: lowers the bounds along its way; returns its chance to be accepted."""
        inner = self._way[:-1]
        chance = math.prod(
            beginning.total() / beginning.bound for beginning in inner[1:] if beginning.bound > 0
        )
        for beginning in reversed(inner):
            beginning.bound = min(beginning.bound, beginning.total())
        return min(1.0, chance)

    def _at(self, path: Sequence[int]) -> _Beginning | None:
        node = self._way[-1]
        for token in path:
            if token not in node.after:
                return None
            node = node.after[token][1]
        return node
