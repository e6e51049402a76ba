"""What passes of a model took of late, so that a long prompt does not hold up other texts."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from weakref import WeakKeyDictionary

LONG_PASS = 16
"""Rows from which on a pass reads a text, rather than writes it."""

GAP = 3.0
"""Passes of texts being written that one which also reads a prompt may take."""

_MEMORY_S = 2.0
"""For so long a text counts as being written after its latest pass, if nobody says otherwise."""

_RATE = 0.3


class PassTimes:
    """Times of passes, of all sequences of one pool."""

    def __init__(self) -> None:
        self._short_ms = 0.0  # of a pass that only writes
        self._row_ms = 0.0  # of a row of a long one
        self._written: WeakKeyDictionary[object, float] = WeakKeyDictionary()

    def note(self, computed: Sequence[tuple[object, int]], ms: float) -> None:
        """Learns what a run took. computed: sequences, and how many rows of each."""
        sizes = [size for _, size in computed]
        now_s = time.perf_counter()
        for sequence, size in computed:
            if size < LONG_PASS:
                self._written[sequence] = now_s
        if max(sizes) < LONG_PASS:
            self._short_ms = _mean(self._short_ms, ms)
        else:
            self._row_ms = _mean(self._row_ms, ms / sum(sizes))

    def forget(self, sequence: object) -> None:
        """Learns that a text is written to its end."""
        self._written.pop(sequence, None)

    def bound_ms(self, reader: object) -> float:
        """Returns what a pass over a part of a prompt may take; infinity where nobody else writes.

        reader: whose prompt it is.
        """
        since_s = time.perf_counter() - _MEMORY_S
        writes = any(at > since_s for other, at in self._written.items() if other is not reader)
        return GAP * self._short_ms if writes and self._short_ms else math.inf

    def row_ms(self) -> float:
        """Returns what a row of a long pass took; 0 while not known."""
        return self._row_ms

    def most_rows(self, sizes: Sequence[int], most: int) -> int:
        """Returns how many rows may share a pass, ``most`` where none that is ready writes.

        sizes: rows of those that are ready.
        """
        writes = any(size < LONG_PASS for size in sizes)
        if not (writes and self._short_ms and self._row_ms):
            return most
        return min(most, max(2 * LONG_PASS, int(GAP * self._short_ms / self._row_ms)))


def _mean(before: float, latest: float) -> float:
    return before + _RATE * (latest - before) if before else latest
