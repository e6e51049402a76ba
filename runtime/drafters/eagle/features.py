"""Features of a text's tokens, as far as they are known and still needed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.runtime.sessions.rows import Float32
from edgedec.runtime.text.common_prefix import common_prefix


class TextFeatures:
    """Features of tokens that follow one another in a text, by their places in it."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._text: Sequence[int] = ()
        self.forget()

    @property
    def first(self) -> int:
        """Place of the first token whose features are known."""
        return self._first

    @property
    def stop(self) -> int:
        """Place behind the last one."""
        return self._first + len(self._rows)

    def forget(self) -> None:
        """Knows nothing from now on."""
        self._first, self._rows = 0, np.zeros((0, self._width), np.float32)

    def follow(self, text: Sequence[int]) -> None:
        """Forgets the features of tokens that ``text`` has not, in the order it has them."""
        n_common = common_prefix(self._text, text)
        self._rows = self._rows[: max(0, n_common - self._first)]
        self._text = list(text)

    def end(self, text: Sequence[int]) -> None:
        """Keeps what it knows, which is of ``text``, for a text that goes on from there."""
        self._rows = self._rows[: max(0, len(text) - self._first)]
        self._text = list(text)

    def put(self, place: int, rows: Float32) -> None:
        """Takes the features of tokens from ``place`` on; a gap makes those before useless."""
        if not self._first <= place <= self.stop:
            self._first, self._rows = place, rows
        else:
            self._rows = np.concatenate([self._rows[: place - self._first], rows])

    def drop_before(self, place: int) -> None:
        """Forgets those of tokens before ``place``."""
        n_dropped = min(max(0, place - self._first), len(self._rows))
        self._first, self._rows = self._first + n_dropped, self._rows[n_dropped:]

    def rows(self, start: int, stop: int) -> Float32:
        """Returns the features of tokens ``start`` to ``stop``, which are known. Shapes: [n, F]."""
        assert self._first <= start <= stop <= self.stop
        return self._rows[start - self._first : stop - self._first]
