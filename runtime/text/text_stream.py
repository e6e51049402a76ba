"""The output's text as it appears: stop texts found, possible beginnings of them held back."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.runtime.text.tokenizer import Detokenizer


class StopFilter:
    """Passes text through up to the first stop text.

    The first stop text is the one that is complete first; of several complete at the same
    character, the longest. What is emitted does not depend on how the text is cut into pieces.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = tuple(stop)
        self._held = ""
        self.is_stopped = False

    def push(self, piece: str) -> str:
        """Returns the text now certain to be before any stop text."""
        if self.is_stopped or not self._stop:
            return "" if self.is_stopped else piece
        text = self._held + piece
        if match := self._first_match(text):
            self.is_stopped = True
            self._held = ""
            return text[: match[0]]
        n_held = self._n_possible(text)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]

    def flush(self) -> str:
        """Returns the text held back, once no more text will come."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, int] | None:
        """Returns (start, end) of the stop text that ends first, the longest of equals."""
        found = [(text.find(stop), len(stop)) for stop in self._stop]
        spans = [(start, start + n) for start, n in found if start >= 0]
        return min(spans, key=lambda span: (span[1], span[0]), default=None)

    def _n_possible(self, text: str) -> int:
        """Returns the length of the longest end of ``text`` that may begin a stop text."""
        longest = min(len(text), max(map(len, self._stop)) - 1)
        for n in range(longest, 0, -1):
            end = text[len(text) - n :]
            if any(stop.startswith(end) for stop in self._stop):
                return n
        return 0


class TextStream:
    """Tokens in, text out: the detokeniser followed by the stop filter."""

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str] = ()) -> None:
        self._detokenizer = detokenizer
        self._filter = StopFilter(stop)
        self._pieces: list[str] = []

    @property
    def is_stopped(self) -> bool:
        """A stop text was completed."""
        return self._filter.is_stopped

    @property
    def text(self) -> str:
        """All text emitted so far."""
        return "".join(self._pieces)

    def push(self, token: int) -> str:
        """Returns the text that ``token`` makes certain."""
        return self._emit(self._filter.push(self._detokenizer.push(token)))

    def flush(self) -> str:
        """Returns the rest, once no more tokens will come."""
        rest = self._filter.push(self._detokenizer.flush())
        return self._emit(rest + self._filter.flush())

    def _emit(self, piece: str) -> str:
        if piece:
            self._pieces.append(piece)
        return piece
