"""A text that an editor changes at positions of the Language Server Protocol.

Positions count UTF-16 units in a line, so the text is kept in them: what lies beyond the 16-bit
plane is two surrogates. A position is then an index, also one between the two, where some editors
cut.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

_PIECE = 16384
"""Units of a piece, at most; at least about half of that."""

LINE_END = re.compile("\r\n|\n|\r")
"""What ends a line, by the protocol."""

_ASTRAL = re.compile("[\U00010000-\U0010ffff]")
_HIGH, _LOW = range(0xD800, 0xDC00), range(0xDC00, 0xE000)


class _Units(dict[int, str]):
    """Code point -> its units; grows as characters are met."""

    def __missing__(self, code: int) -> str:
        above = code - 0x10000
        pair = chr(0xD800 + (above >> 10)) + chr(0xDC00 + (above & 0x3FF))
        self[code] = chr(code) if above < 0 else pair
        return self[code]


_UNITS = _Units()


def to_units(text: str) -> str:
    """Returns ``text`` with two surrogates for each character that UTF-16 writes as two."""
    return text if _ASTRAL.search(text) is None else text.translate(_UNITS)


def from_units(units: str) -> str:
    """Returns the text of ``units``; surrogates that are alone stay as they are."""
    if units.isascii():
        return units
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


class TextBuffer:
    """A text in pieces: what an edit costs does not grow with the text, but for a walk over them.

    No piece begins within a line end of two characters.
    """

    def __init__(self, text: str) -> None:
        self._pieces = _cut(to_units(text))

    @property
    def text(self) -> str:
        """All of it."""
        return from_units("".join(piece.units for piece in self._pieces))

    @property
    def n_units(self) -> int:
        """UTF-16 units of the text."""
        return sum(len(piece.units) for piece in self._pieces)

    @property
    def n_lines(self) -> int:
        """Lines; one at least."""
        return 1 + sum(piece.n_ends for piece in self._pieces)

    def offset(self, line: int, character: int) -> int:
        """Returns the index of a position; what is beyond a line, or the text, is its end."""
        start = self.line_start(line)
        return min(start + max(character, 0), self._line_end(start))

    def line_start(self, line: int) -> int:
        """Returns the index at which a line begins; the end of the text if it has fewer."""
        at, n_left = 0, max(line, 0)
        for piece in self._pieces:
            if n_left <= piece.n_ends:
                return at + _after_end(piece.units, n_left)
            n_left -= piece.n_ends
            at += len(piece.units)
        return at

    def slice(self, start: int, stop: int) -> str:
        """Returns the units from ``start`` to ``stop``."""
        parts, at = [], 0
        for piece in self._pieces:
            end = at + len(piece.units)
            if end > start and at < stop:
                parts.append(piece.units[max(start - at, 0) : stop - at])
            at = end
        return "".join(parts)

    def whole(self, at: int) -> int:
        """Returns ``at``, or the index before where it parts the surrogates of a character."""
        two = self.slice(at - 1, at + 1) if at > 0 else ""
        is_within = len(two) == 2 and ord(two[0]) in _HIGH and ord(two[1]) in _LOW
        return at - is_within

    def replace(self, start: int, stop: int, text: str) -> None:
        """Puts ``text`` in the place of the units from ``start`` to ``stop``."""
        first, first_at = self._piece_at(start)
        last, last_at = self._piece_at(max(start, stop))
        head = self._pieces[first].units[: start - first_at]
        tail = self._pieces[last].units[max(start, stop) - last_at :]
        # The neighbours as well: pieces stay of a size, and no line end is parted.
        if first > 0:
            first -= 1
            head = self._pieces[first].units + head
        if last + 1 < len(self._pieces):
            last += 1
            tail += self._pieces[last].units
        self._pieces[first : last + 1] = _cut(head + to_units(text) + tail)

    def _line_end(self, start: int) -> int:
        """Returns the index at which the line ends that begins at ``start``."""
        at = 0
        for piece in self._pieces:
            end = at + len(piece.units)
            if end > start and piece.n_ends:
                match = LINE_END.search(piece.units, max(start - at, 0))
                if match is not None:
                    return at + match.start()
            at = end
        return at

    def _piece_at(self, index: int) -> tuple[int, int]:
        """Returns the number of the piece that ``index`` is in, and where that begins."""
        at = 0
        for i, piece in enumerate(self._pieces):
            if index < at + len(piece.units):
                return i, at
            at += len(piece.units)
        last = len(self._pieces) - 1
        return last, at - len(self._pieces[last].units)


@dataclass(frozen=True, slots=True)
class _Piece:
    units: str
    n_ends: int


def _cut(units: str) -> list[_Piece]:
    """Returns ``units`` in pieces of about one size; one at least."""
    n_pieces = max(1, -(-len(units) // _PIECE))
    edges = [len(units) * i // n_pieces for i in range(n_pieces + 1)]
    for i in range(1, n_pieces):
        edges[i] += units[edges[i] - 1 : edges[i] + 1] == "\r\n"
    return [_piece(units[i:j]) for i, j in pairwise(edges)]


def _piece(units: str) -> _Piece:
    n_ends = units.count("\n") + units.count("\r") - units.count("\r\n")
    return _Piece(units, n_ends)


def _after_end(units: str, n: int) -> int:
    """Returns the index behind the ``n``-th line end."""
    at = 0
    for _ in range(n):
        match = LINE_END.search(units, at)
        assert match is not None
        at = match.end()
    return at
