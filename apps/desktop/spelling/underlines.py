"""Wavy lines below words that are in no dictionary, where somebody sees them."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QPoint, QTimer
from PySide6.QtGui import QColor, QTextBlock, QTextCharFormat
from PySide6.QtWidgets import QPlainTextEdit

from edgedec.apps.desktop.seen_lines import seen_lines
from edgedec.apps.desktop.spelling.speller import Speller
from edgedec.apps.desktop.spelling.words import words_of
from edgedec.widgets.ghost_text import format_line
from edgedec.widgets.units import n_units, whole

_REST_MS = 30
"""Between what makes looking again worth while, and that."""

_LONGEST = 20_000
"""Units of a paragraph; longer ones are not looked at: a key would take too long."""

_AT_ONCE = 8
"""Paragraphs of a change that are looked at before it is painted."""


class Underlines(QObject):
    """Looks at the paragraphs that are seen, and at those that change.

    The word that is being written is not underlined before the cursor leaves it.
    """

    def __init__(self, edit: QPlainTextEdit, speller: Speller) -> None:
        super().__init__(edit)
        self._edit = edit
        self._speller = speller
        self._is_on = False
        self._written = -1  # where the latest change ended
        self._format = QTextCharFormat()
        self._format.setUnderlineStyle(QTextCharFormat.UnderlineStyle.SpellCheckUnderline)
        self._format.setUnderlineColor(QColor("#d64545"))
        self._waiting = QTimer(self, singleShot=True, interval=_REST_MS)
        self._waiting.timeout.connect(self._look)
        speller.changed.connect(self._look_soon)
        edit.document().contentsChange.connect(self._on_change)
        edit.cursorPositionChanged.connect(self._look_soon)
        edit.updateRequest.connect(self._on_moved)
        edit.viewport().installEventFilter(self)

    def turn(self, is_on: bool) -> None:
        """Underlines words from now on, or none."""
        if is_on == self._is_on:
            return
        self._is_on = is_on
        if is_on:
            self._look_soon()
        else:
            block = self._edit.document().begin()
            while block.isValid():
                if block.layout().formats():
                    format_line(block, [])
                block = block.next()

    def word_at(self, point: QPoint) -> tuple[int, int] | None:
        """Returns between which positions a wrong word is, at a point of what is seen."""
        cursor = self._edit.cursorForPosition(point)
        block, at = cursor.block(), cursor.positionInBlock()
        for start, stop, _ in self._wrong(block) if self._is_on else ():
            if start <= at <= stop:
                return block.position() + start, block.position() + stop
        return None

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802
        """Looks again where more is seen than before."""
        if event.type() == QEvent.Type.Resize:
            self._look_soon()
        return False

    def _look_soon(self) -> None:
        if self._is_on and not self._waiting.isActive():
            self._waiting.start()

    def _on_moved(self, area: object, n_lines: int) -> None:
        if n_lines:
            self._look_soon()

    def _on_change(self, position: int, n_removed: int, n_added: int) -> None:
        self._written = position + n_added
        if not self._is_on:
            return
        document = self._edit.document()
        block, last = document.findBlock(position), document.findBlock(position + n_added)
        if not last.isValid():
            last = document.lastBlock()
        if last.blockNumber() - block.blockNumber() > _AT_ONCE:
            self._look_soon()
            return
        while block.isValid() and block.blockNumber() <= last.blockNumber():
            self._mark(block)
            block = block.next()

    def _look(self) -> None:
        """Underlines what is seen now."""
        if not (self._is_on and self._edit.isVisible()):
            return
        for block in seen_lines(self._edit):
            self._mark(block)

    def _mark(self, block: QTextBlock) -> None:
        cursor = self._edit.textCursor()
        here = cursor.position() - block.position() if cursor.position() == self._written else -1
        format_line(
            block,
            [
                (start, stop - start, self._format)
                for start, stop, _ in self._wrong(block)
                if not start <= here <= stop
            ],
        )

    def _wrong(self, block: QTextBlock) -> list[tuple[int, int, str]]:
        """Returns the wrong words of a paragraph, and where they are in it. Units: UTF-16."""
        if block.length() > _LONGEST:
            return []
        text = whole(block.text())
        words = [(*span, text[slice(*span)]) for span in words_of(text)]
        wrong = [word for word in words if self._speller.is_wrong(word[2])]
        if len(text) == n_units(text):
            return wrong
        return [(n_units(text[:a]), n_units(text[:b]), word) for a, b, word in wrong]
