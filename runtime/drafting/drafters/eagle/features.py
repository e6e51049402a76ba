"""Features of a text's tokens, as far as they are known and still needed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.runtime.sequences.rows import Float32
from edgedec.runtime.text.common_prefix import common_prefix


class TextFeatures:
    """Features of tokens that follow one another in a text, by their places in it.

    Every round of decoding adds some, whether or not a head reads them: those known stay where they
    are until the room behind them is used up.
    """

    def __init__(self, width: int) -> None:
        self._text: Sequence[int] = ()
        self._room = np.zeros((0, width), np.float32)
        self.forget()

    @property
    def first(self) -> int:
        """Place of the first token whose features are known."""
        return self._first

    @property
    def stop(self) -> int:
        """Place behind the last one."""
        return self._first + self._n_rows

    def forget(self) -> None:
        """Knows nothing from now on."""
        self._first, self._offset, self._n_rows = 0, 0, 0

    def follow(self, text: Sequence[int]) -> None:
        """Forgets the features of tokens that ``text`` has not, in the order it has them."""
        n_common = common_prefix(self._text, text)
        self._keep_before(n_common)
        self._text = list(text)

    def end(self, text: Sequence[int]) -> None:
        """Keeps what it knows, which is of ``text``, for a text that goes on from there."""
        self._keep_before(len(text))
        self._text = list(text)

    def put(self, place: int, rows: Float32) -> None:
        """Takes the features of tokens from ``place`` on; a gap makes those before useless."""
        if not self._first <= place <= self.stop:
            self._first, self._n_rows = place, 0
        self._keep_before(place)
        self._make_room(len(rows))
        start = self._offset + self._n_rows
        self._room[start : start + len(rows)] = rows
        self._n_rows += len(rows)

    def drop_before(self, place: int) -> None:
        """Forgets those of tokens before ``place``."""
        n_dropped = min(max(0, place - self._first), self._n_rows)
        self._first += n_dropped
        self._offset += n_dropped
        self._n_rows -= n_dropped

    def rows(self, start: int, stop: int) -> Float32:
        """Returns the features of tokens ``start`` to ``stop``, which are known. Shapes: [n, F].

        They are a view: what is put next may overwrite it.
        """
        assert self._first <= start <= stop <= self.stop
        shift = self._offset - self._first
        return self._room[start + shift : stop + shift]

    def _keep_before(self, place: int) -> None:
        self._n_rows = min(self._n_rows, max(0, place - self._first))

    def _make_room(self, n_new: int) -> None:
        """Moves what is known to the front of a larger array unless ``n_new`` rows still fit."""
        n_needed = self._n_rows + n_new
        if self._offset + n_needed <= len(self._room):
            return
        known = self._room[self._offset : self._offset + self._n_rows]
        self._room = np.zeros((2 * n_needed, known.shape[1]), np.float32)
        self._room[: len(known)] = known
        self._offset = 0
