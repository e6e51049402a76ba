"""Guesses of what the draft model will find likeliest, from what it found before.

A guess rides along in the pass that computes the token before it, where a row costs about a tenth
of a pass. Where it is right, the pass that would have come next is saved; where it is wrong,
nothing is drafted that would not have been.

Source: a drafter for the draft model, staged speculative decoding (Spector and Re, 2023).
"""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.runtime.drafting.drafters.draft.distribution import Option

MAX_GUESSES = 3
"""Rows that may ride along in one pass."""

_CAPACITY = 1 << 14  # tokens, and pairs of tokens, that are remembered
_WORTH = 0.15  # chance of saving a pass that a row has to have
_MEMORY = 0.98  # what one look leaves of the weight of those before it
_PRIORS = (0.35, 0.6)  # chance that the token after one, and after two, is the same again

Key = tuple[int, ...]


class Guesses:
    """What was likeliest after the last two tokens, or after the last one, the latest time."""

    def __init__(self) -> None:
        self._after: dict[Key, Option] = {}
        self._rates = dict(zip((1, 2), _PRIORS, strict=True))  # by number of tokens

    def learn(self, before: Sequence[int], likeliest: Option) -> None:
        """Takes in what the draft model finds likeliest after tokens that end in ``before``."""
        key, guess = self._find(before)
        if guess is not None:
            is_right = guess.token == likeliest.token
            self._rates[len(key)] += (1 - _MEMORY) * (is_right - self._rates[len(key)])
        for n in (1, 2):
            key = tuple(before[-n:])
            self._after.pop(key, None)  # the latest come last
            self._after[key] = likeliest
        while len(self._after) > _CAPACITY:
            del self._after[next(iter(self._after))]

    def chain(self, before: Sequence[int], value: float, most: int = MAX_GUESSES) -> list[Option]:
        """Returns tokens to guess one after the other behind ``before``.

        value: probability that they are needed at all.
        """
        options: list[Option] = []
        while len(options) < most:
            key, guess = self._find(before)
            value *= self._rates.get(len(key), 0.0)
            if guess is None or value < _WORTH:
                break
            options.append(guess)
            before = (*before[-1:], guess.token)
        return options

    def _find(self, before: Sequence[int]) -> tuple[Key, Option | None]:
        for n in (2, 1):
            key = tuple(before[-n:])
            if key in self._after:
                return key, self._after[key]
        return (), None
