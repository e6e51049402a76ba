"""An index of all substrings of a growing text, in a step of constant amortised time a token."""

from __future__ import annotations

from collections.abc import Iterable

START = 0
"""The state of the empty string."""

_MAX_WALK = 64  # suffixes counted per token; a text that repeats one token has as many as tokens


class SuffixAutomaton:
    """The smallest automaton of all substrings of ``tokens``.

    A state stands for substrings that end at the same places of the text. Its transitions are the
    tokens that came after those places.

    Source: Blumer et al. (1985); as a drafter, SAM-Decoding (Hu et al., 2024, section 3).
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]  # the state of the longest suffix that ends at more places
        self._length = [0]  # of the longest substring
        self._count = [0]
        self._latest = [-1]
        self._last = START
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """Adds ``token`` to the end of the text."""
        following, link = self._next, self._link
        new = self._new_state({}, START, self._length[self._last] + 1, 0, -1)
        state = self._last
        while state >= 0 and token not in following[state]:
            following[state][token] = new
            state = link[state]
        if state >= 0:
            link[new] = self._suffix_state(state, token)
        self._last = new
        self.tokens.append(token)
        self._count_suffixes()

    def longest_repeat(self) -> int:
        """Returns the state of the longest suffix of the text that occurs earlier, too."""
        return max(START, self._link[self._last])

    def shorter(self, state: int) -> int:
        """Returns the state of the longest suffix that occurs more often; START ends at START."""
        return max(START, self._link[state])

    def length(self, state: int) -> int:
        """Returns the length of the longest substring of ``state``."""
        return self._length[state]

    def followers(self, state: int) -> list[tuple[int, int, int, int]]:
        """Returns what came after ``state``: token, state, how often, where it was seen last.

        Counts and places of short suffixes lag behind in texts that repeat themselves endlessly.
        """
        count, latest = self._count, self._latest
        return [(token, to, count[to], latest[to]) for token, to in self._next[state].items()]

    def _suffix_state(self, state: int, token: int) -> int:
        """Returns the state of exactly the longest of ``state`` and ``token``, made if need be."""
        found, length = self._next[state][token], self._length[state] + 1
        if self._length[found] == length:
            return found
        clone = self._new_state(
            dict(self._next[found]),
            self._link[found],
            length,
            self._count[found],
            self._latest[found],
        )
        self._link[found] = clone
        while state >= 0 and self._next[state].get(token) == found:
            self._next[state][token] = clone
            state = self._link[state]
        return clone

    def _new_state(
        self, following: dict[int, int], link: int, length: int, count: int, latest: int
    ) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._count.append(count)
        self._latest.append(latest)
        return len(self._link) - 1

    def _count_suffixes(self) -> None:
        """Notes that every suffix of the text ends here."""
        state, position = self._last, len(self.tokens) - 1
        for _ in range(_MAX_WALK):
            if state == START:
                break
            self._count[state] += 1
            self._latest[state] = position
            state = self._link[state]
