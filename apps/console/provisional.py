"""Text that may still change, shown dim at a terminal behind what is final."""

from __future__ import annotations

import os
import shutil
import sys

from edgedec.apps.console.output import visible
from edgedec.apps.console.terminal import TextWriter
from edgedec.runtime.engine.stream import Piece

_DIM, _PLAIN, _TO_END = "\x1b[2m", "\x1b[22m", "\x1b[J"
_TAB = 8


class PieceWriter:
    """Writes the pieces of a stream; those that are provisional to a terminal only."""

    def __init__(self, writer: TextWriter) -> None:
        self._writer = writer
        self._is_shown = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._text = ""  # from the output's beginning on, as far as anything is known
        self._n_final = 0
        self._tail = ""  # what is on the screen behind the final text
        self._column = 0  # where that begins

    def write(self, piece: Piece) -> None:
        """Writes a piece at once, and what is provisional behind it once more."""
        if not self._is_shown:
            if not piece.is_provisional:
                self._writer.write(piece.text, piece.origin)
            return
        self._withdraw()
        if piece.is_provisional:
            self._text = self._text[: piece.position] + piece.text
        else:
            self._take(piece)
        self._show()

    def end(self) -> None:
        """Takes back what was never confirmed."""
        self._withdraw()

    def _take(self, piece: Piece) -> None:
        stop = piece.position + len(piece.text)
        if self._text[piece.position : stop] != piece.text:
            self._text = ""  # whatever stood behind it follows another text
        self._n_final = stop
        self._writer.write(piece.text, piece.origin)
        _, self._column = moved(visible(piece.text), self._column, _width())

    def _show(self) -> None:
        tail = visible(self._text[self._n_final :])
        if tail and self._column < _width():  # at a full line nobody knows where the cursor is
            self._tail = tail
            self._writer.write_raw(f"{_DIM}{tail}{_PLAIN}")

    def _withdraw(self) -> None:
        if not self._tail:
            return
        n_rows, _ = moved(self._tail, self._column, _width())
        up = f"\x1b[{n_rows}A" if n_rows else ""
        self._writer.write_raw(f"{up}\x1b[{self._column + 1}G{_TO_END}")
        self._tail = ""


def moved(text: str, column: int, width: int) -> tuple[int, int]:
    """Returns the rows by which ``text`` takes the cursor down from ``column``, and its column."""
    from rich.cells import get_character_cell_size

    n_rows = 0
    for character in text:
        if character == "\n":
            n_rows, column = n_rows + 1, 0
        elif character == "\t":
            column = min((column // _TAB + 1) * _TAB, width - 1)
        else:
            size = get_character_cell_size(character)
            if column + size > width:
                n_rows, column = n_rows + 1, 0
            column += size
    return n_rows, column


def _width() -> int:
    return shutil.get_terminal_size().columns
