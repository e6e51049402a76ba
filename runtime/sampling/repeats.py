"""A text's own repetitions: what came earlier after the words that it ends with now."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

MAX = 128
"""Longest match that is counted. Units: tokens."""

_ROOM = 1024


class Repeats:
    """The tokens of a text. A walk through a tree of drafts adds tokens and takes them back.

    breakers: tokens that matches neither cross nor are followed by.
    """

    def __init__(self, tokens: Iterable[int], breakers: frozenset[int] = frozenset()) -> None:
        held = np.fromiter(tokens, np.int64)
        self._n = len(held)
        self._tokens = np.empty(self._n + _ROOM, np.int64)
        self._tokens[: self._n] = held
        self._breakers = breakers

    def add(self, token: int) -> None:
        """Appends ``token``."""
        if self._n == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty(self._n, np.int64)])
        self._tokens[self._n] = token
        self._n += 1

    def remove(self) -> None:
        """Takes back the latest `add`."""
        self._n -= 1

    def following(self, most: int = MAX) -> tuple[Ids, Ids]:
        """Returns the tokens that earlier followed the text's end, and the longest match of each.

        A match of n: the last n tokens of the text stand before the token, too. Matches are counted
        up to ``most`` tokens.

        Shapes: [N] int64 distinct tokens in rising order, [N] int64 from 1 to ``most``.
        """
        text = self._tokens[: self._n]
        if self._n < 2 or int(text[-1]) in self._breakers:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        ends = np.flatnonzero(text[:-1] == text[-1])
        lengths = np.ones(len(ends), np.int64)
        alive = np.arange(len(ends))
        for n in range(1, min(most, self._n)):
            token = int(text[-1 - n])
            if token in self._breakers:
                break
            alive = alive[ends[alive] >= n]
            alive = alive[text[ends[alive] - n] == token]
            if not len(alive):
                break
            lengths[alive] = n + 1
        tokens, places = np.unique(text[ends + 1], return_inverse=True)
        longest = np.zeros(len(tokens), np.int64)
        np.maximum.at(longest, places, lengths)
        kept = np.array([int(token) not in self._breakers for token in tokens], np.bool_)
        return tokens[kept], longest[kept]
