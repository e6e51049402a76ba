"""States of a text at some of its tokens, from which it can go on though it cannot be cut there."""

from __future__ import annotations

from bisect import bisect_right
from typing import Generic, TypeVar

T = TypeVar("T")

CHECKPOINT_TOKENS = 128
"""Fewest tokens between two checkpoints when they are taken: going back computes fewer anew."""

CHECKPOINT_BYTES = 64 << 20
"""Most bytes that the checkpoints of one text take, if these suffice for two."""

_MAX, _FEWEST = 64, 2


class Checkpoints(Generic[T]):
    """What a state was at some tokens: more of late, fewer of long ago."""

    def __init__(self, nbytes: int) -> None:
        """Makes an empty list. nbytes: of one checkpoint."""
        self.nbytes_each = nbytes
        self._most = min(_MAX, max(_FEWEST, CHECKPOINT_BYTES // max(1, nbytes)))
        self._tokens: list[int] = []
        self._states: list[T] = []

    @property
    def tokens(self) -> tuple[int, ...]:
        """Numbers of tokens of which there are states, rising."""
        return tuple(self._tokens)

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return self.nbytes_each * len(self._tokens)

    def is_due(self, n_tokens: int) -> bool:
        """Says whether the text has grown enough for another checkpoint."""
        return n_tokens - (self._tokens[-1] if self._tokens else 0) >= CHECKPOINT_TOKENS

    def add(self, n_tokens: int, state: T) -> None:
        """Keeps the state of the first ``n_tokens``; another one may be dropped for it."""
        self.truncate(n_tokens - 1)
        self._tokens.append(n_tokens)
        self._states.append(state)
        if len(self._tokens) > self._most:
            dropped = self._least_missed()
            del self._tokens[dropped], self._states[dropped]

    def latest(self, n_tokens: int) -> tuple[int, T] | None:
        """Returns the last checkpoint up to ``n_tokens``, and how many tokens it is of."""
        i = bisect_right(self._tokens, n_tokens) - 1
        return (self._tokens[i], self._states[i]) if i >= 0 else None

    def truncate(self, n_tokens: int) -> None:
        """Forgets the checkpoints of more than ``n_tokens``."""
        n_kept = bisect_right(self._tokens, n_tokens)
        del self._tokens[n_kept:], self._states[n_kept:]

    def _least_missed(self) -> int:
        """Returns the checkpoint whose absence costs least, for its distance from the end."""
        places = [0, *self._tokens]
        end = places[-1]
        gaps = [
            (places[i + 1] - places[i - 1]) / (end - places[i]) for i in range(1, len(places) - 1)
        ]
        return gaps.index(min(gaps))
