"""Colours of programs, where somebody sees them."""

from __future__ import annotations

from pathlib import Path

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_for_filename
from pygments.styles import get_style_by_name
from pygments.token import Text
from pygments.util import ClassNotFound
from PySide6.QtCore import QEvent, QObject, QTimer
from PySide6.QtGui import QColor, QTextBlock, QTextCharFormat
from PySide6.QtWidgets import QPlainTextEdit

from edgedec.apps.desktop.seen_lines import seen_lines
from edgedec.widgets.ghost_text import format_line
from edgedec.widgets.units import n_units, whole

_REST_MS = 40
"""Between a change and new colours: some ms are spent on them."""

_ABOVE = 8_000
"""Units above what is seen that are read, to know whether that is inside of a string."""

_LONGEST = 4_000
"""Units of a line; longer ones have no colours."""

_STYLES = ("friendly", "monokai")
"""Names of Pygments for light and dark windows."""

_Range = tuple[int, int, QTextCharFormat]


class CodeColours(QObject):
    """Colours the lines that are seen, by the language of a file's name."""

    def __init__(self, edit: QPlainTextEdit) -> None:
        super().__init__(edit)
        self._edit = edit
        self._lexer: Lexer | None = None
        self._style = get_style_by_name(_STYLES[0])
        self._formats: dict[object, QTextCharFormat] = {}
        self._waiting = QTimer(self, singleShot=True, interval=_REST_MS)
        self._waiting.timeout.connect(self._look)
        edit.document().contentsChange.connect(self._look_soon)
        edit.updateRequest.connect(self._on_moved)
        edit.viewport().installEventFilter(self)

    def turn(self, path: Path | None, is_dark: bool) -> None:
        """Colours the language of ``path`` from now on; None, or an unknown one: nothing."""
        lexer = None if path is None else _lexer(path)
        if lexer is None:
            if self._lexer is not None:
                self._clear()
            self._lexer = None
            return
        self._lexer, self._style = lexer, get_style_by_name(_STYLES[is_dark])
        self._formats = {}
        self._look_soon()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802
        """Looks again where more is seen than before."""
        if event.type() == QEvent.Type.Resize:
            self._look_soon()
        return False

    def _on_moved(self, area: object, n_lines: int) -> None:
        if n_lines:
            self._look_soon()

    def _look_soon(self) -> None:
        if self._lexer is not None and not self._waiting.isActive():
            self._waiting.start()

    def _look(self) -> None:
        if self._lexer is None or not self._edit.isVisible():
            return
        seen = seen_lines(self._edit)
        first, last = seen[0], seen[-1].blockNumber()
        start = self._edit.document().findBlock(max(0, first.position() - _ABOVE))
        blocks, block = [], start
        while block.isValid() and block.blockNumber() <= last:
            blocks.append(block)
            block = block.next()
        seen_from = first.blockNumber() - start.blockNumber()
        for block, ranges in list(zip(blocks, self._ranges(blocks), strict=True))[seen_from:]:
            format_line(block, ranges)

    def _ranges(self, blocks: list[QTextBlock]) -> list[list[_Range]]:
        """Returns what is coloured in each of ``blocks``. Units: UTF-16."""
        assert self._lexer is not None
        texts = [whole(block.text()) if block.length() < _LONGEST else "" for block in blocks]
        ranges: list[list[_Range]] = [[] for _ in blocks]
        row = column = 0
        for kind, text in self._lexer.get_tokens("\n".join(texts)):
            for i, part in enumerate(text.split("\n")):
                if i:
                    row, column = row + 1, 0
                n = n_units(part)
                if n and row < len(ranges) and kind not in Text:
                    ranges[row].append((column, n, self._format(kind)))
                column += n
        return ranges

    def _format(self, kind: object) -> QTextCharFormat:
        if kind not in self._formats:
            style, made = self._style.style_for_token(kind), QTextCharFormat()
            if style["color"]:
                made.setForeground(QColor(f"#{style['color']}"))
            made.setFontItalic(style["italic"])
            self._formats[kind] = made
        return self._formats[kind]

    def _clear(self) -> None:
        block = self._edit.document().begin()
        while block.isValid():
            if block.layout().formats():
                format_line(block, [])
            block = block.next()


def _lexer(path: Path) -> Lexer | None:
    try:
        # Blank lines and spaces at the ends stay, so that positions are those of the document.
        lexer: Lexer = get_lexer_for_filename(path.name, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None
    return lexer
