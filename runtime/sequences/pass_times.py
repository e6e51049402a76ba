"""What passes of a model took of late, so that a long prompt does not hold up other texts."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Protocol
from weakref import WeakSet

LONG_PASS = 16
"""Rows from which on a pass reads a text, rather than writes it."""

GAP = 3.0
"""Passes of texts being written that one which also reads a prompt may take."""

NEVER_S = -math.inf
"""When a text was last written that is not being written."""

_MEMORY_S = 2.0
"""For so long a text counts as being written after its latest pass, if nobody says otherwise."""

_RATE = 0.3


class Writer(Protocol):
    """A text that passes write. written_s: when its latest short pass ended."""

    written_s: float


class PassTimes:
    """Times of passes, of all sequences of one pool."""

    def __init__(self) -> None:
        self._short_ms = 0.0  # of a pass that only writes
        self._row_ms = 0.0  # of a row of a long one
        self._texts: WeakSet[Writer] = WeakSet()

    def join(self, text: Writer) -> None:
        """Learns of a text whose passes take their turns with the others'."""
        self._texts.add(text)

    def note(self, n_rows: int, longest: int, ms: float) -> None:
        """Learns what a run over ``n_rows`` took, ``longest`` of them of one text."""
        if longest < LONG_PASS:
            self._short_ms += (_RATE if self._short_ms else 1) * (ms - self._short_ms)
        else:
            self._row_ms += (_RATE if self._row_ms else 1) * (ms / n_rows - self._row_ms)

    def forget(self, text: Writer) -> None:
        """Learns that a text is written to its end."""
        text.written_s = NEVER_S

    def bound_ms(self, reader: Writer) -> float:
        """Returns what a pass over a part of a prompt may take; infinity where nobody else writes.

        reader: whose prompt it is.
        """
        since_s = time.perf_counter() - _MEMORY_S
        writes = any(text.written_s > since_s for text in self._texts if text is not reader)
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
