"""What the model says at one place of a document, as it appears."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from edgedec.autocomplete.config import AutocompleteConfig
from edgedec.autocomplete.document import Document, Window
from edgedec.autocomplete.repeats import without_repeats
from edgedec.runtime.engine.stream import Stream


def first_line(text: str) -> str:
    """Returns ``text`` up to the end of its first line that is not blank."""
    end = text.find("\n", len(text) - len(text.lstrip()))
    return (text if end < 0 else text[:end]).removesuffix("\r")


_NEAR = 256
"""Characters by which a cursor moves so that most of a prompt stays as it is."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of an answer. origin: as of `Offer.parts`."""

    text: str
    log_prob: float
    origin: str


class Continuation:
    """A text in the making that continues a window, and how far its reader has typed it.

    Args:
        document: Of which ``window`` is what the model reads.
        window: Without ``half_word``, which is typed already and which the text begins with.
        stream: Watched, not begun.
    """

    def __init__(
        self,
        document: Document,
        window: Window,
        half_word: str,
        stream: Stream,
        config: AutocompleteConfig,
    ) -> None:
        self._document = document
        self.window = window
        self.stream = stream
        self._half_word = half_word
        self._is_block = config.is_block
        self._min_log_prob = config.min_log_prob
        self._coming = stream.pieces
        self._pieces: list[_Piece] = []
        self._n_typed = len(half_word)
        self._n_shown = 0  # characters
        self._n_before_line = 0  # characters before the line in the making
        self._is_stopped = False
        self.is_ended = False

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(piece.text for piece in self._pieces)

    @property
    def is_line_whole(self) -> bool:
        """What is offered will not grow."""
        return self.is_ended or len(self._line) < len(self.text) - self._n_typed

    @property
    def rest(self) -> str:
        """What is on offer: a line of what was not typed yet, or all of it, without repeats."""
        before = self.window.before + self.text[: self._n_typed]
        return without_repeats(self._line, before.rpartition("\n")[2], self.window.after)

    @property
    def _line(self) -> str:
        rest = self.text[self._n_typed :] if self.text.startswith(self._half_word) else ""
        return rest if self._is_block else first_line(rest)

    @property
    def _line_log_prob(self) -> float:
        """Log-probability of the line in the making, as far as it was not typed yet."""
        first, at, total = max(self._n_typed, self._n_before_line), 0, 0.0
        for piece in self._pieces:
            at += len(piece.text)
            total += piece.log_prob if at > first else 0.0
        return total

    @property
    def probability(self) -> float:
        """Of what is on offer, pieces that are typed in part counted whole."""
        return math.exp(sum(piece.log_prob for piece, _ in self._on_offer()))

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """What is on offer, by origin: as of `Offer.parts`."""
        parts: list[tuple[str, str]] = []
        for piece, text in self._on_offer():
            if parts and parts[-1][1] == piece.origin:
                parts[-1] = parts[-1][0] + text, piece.origin
            else:
                parts.append((text, piece.origin))
        return tuple(parts)

    def note_shown(self) -> None:
        """What is on offer is seen."""
        self._n_shown = max(self._n_shown, self._n_typed + len(self.rest))

    @property
    def n_shown(self) -> int:
        """Pieces that were on offer, in part at least."""
        starts = accumulate((len(piece.text) for piece in self._pieces), initial=0)
        return sum(start < self._n_shown for start in list(starts)[:-1])

    def stop(self) -> None:
        """Nobody wants it: it ends before it says what it might have said."""
        self._is_stopped = True
        self.stream.stop()

    def advance(self) -> bool:
        """Computes the next piece; returns False at the end, or where it is likely to be wrong."""
        piece = next((piece for piece in self._coming if not piece.is_provisional), None)
        signal = self.stream.signal
        log_prob = 0.0 if signal is None else math.log(max(signal.top_prob, 1e-30))
        n_known = len(self._half_word) - len(self.text)  # of the piece, characters typed already
        is_news = piece is not None and len(piece.text) > n_known
        if piece is None or (is_news and self._line_log_prob + log_prob < self._min_log_prob):
            self.is_ended = True
            return False
        self._pieces.append(_Piece(piece.text, log_prob, piece.origin))
        line = self.text[self._n_before_line :]
        if not self._is_block and len(first_line(line)) < len(line):
            self._n_before_line = len(self.text)
        return True

    def follow(self, window: Window) -> bool:
        """Returns whether ``window`` differs only by what is on offer having been typed."""
        typed = window.typed_since(self.window)
        if self._is_stopped:
            return False
        if typed == self._half_word and not self.text:
            return True
        if typed is None or not (self.text + "\0").startswith(typed):
            return False
        if self.is_ended and len(typed) == len(self.text):
            return False  # all of it is typed, and nothing more will come
        self._n_typed = len(typed)
        return True

    def is_near(self, document: Document) -> bool:
        """Says whether most of the prompt is that of ``document``, too."""
        return document.name == self._document.name and abs(self._moved(document)) < _NEAR

    def _moved(self, document: Document) -> int:
        here = self._document.offset + self._document.cursor
        return document.offset + document.cursor - here

    def _on_offer(self) -> Iterator[tuple[_Piece, str]]:
        """Yields the pieces that are on offer, and what of each is."""
        start, stop, at = self._n_typed, self._n_typed + len(self.rest), 0
        for piece in self._pieces:
            if text := piece.text[max(0, start - at) : max(0, stop - at)]:
                yield piece, text
            at += len(piece.text)
