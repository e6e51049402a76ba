"""Line numbers beside the text of a program, and the mark of the line with the cursor."""

from __future__ import annotations

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QTextBlock
from PySide6.QtWidgets import QApplication, QPlainTextEdit, QWidget

from edgedec.apps.desktop.seen_lines import seen_lines

_GAP = 8
"""Units: pixels, on either side of a number."""


class Margin(QWidget):
    """Numbers the lines that are seen, and marks the one with the cursor.

    The edit's class calls `place` when it is resized and `paint_line` before it paints. It also
    sets the margin's width, which Qt keeps for subclasses.
    """

    def __init__(self, edit: QPlainTextEdit) -> None:
        super().__init__(edit)
        self._edit = edit
        self._marked = edit.textCursor().block()
        self.is_on = False
        edit.updateRequest.connect(self._on_update)
        edit.cursorPositionChanged.connect(self._on_cursor)

    @property
    def wanted_width(self) -> int:
        """Pixels that the numbers take; 0 if there are none."""
        n_digits = max(2, len(str(self._edit.blockCount())))
        return self.is_on * (2 * _GAP + n_digits * self._edit.fontMetrics().horizontalAdvance("9"))

    def place(self) -> None:
        """Stands on the left of the text."""
        area = self._edit.contentsRect()
        self.setGeometry(QRect(area.left(), area.top(), self.wanted_width, area.height()))
        self.setVisible(self.is_on)

    def paint_line(self) -> None:
        """Marks the line with the cursor.

        A selection of Qt that is as wide as the view ends where ghost text does.
        """
        if self.is_on:
            painter = QPainter(self._edit.viewport())
            here = self._line(self._edit.textCursor().block())
            painter.fillRect(here, QApplication.palette().alternateBase())
            painter.end()

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802
        """Paints the numbers of the lines that are seen."""
        painter, palette = QPainter(self), QApplication.palette()
        painter.setFont(self._edit.font())
        painter.fillRect(event.rect(), palette.base())
        here = self._edit.textCursor().blockNumber()
        for block in seen_lines(self._edit):
            is_here = block.blockNumber() == here
            painter.setPen((palette.text() if is_here else palette.placeholderText()).color())
            top, height = self._line(block).top(), self._edit.fontMetrics().height()
            place = QRect(0, top, self.width() - _GAP, height)
            painter.drawText(place, Qt.AlignmentFlag.AlignRight, str(block.blockNumber() + 1))

    def _on_cursor(self) -> None:
        before, self._marked = self._marked, self._edit.textCursor().block()
        if self.is_on and before != self._marked:
            for block in (before, self._marked):
                self._edit.viewport().update(self._line(block))
            self.update()

    def _line(self, block: QTextBlock) -> QRect:
        """Returns where a line is seen, as wide as the view."""
        if not block.isValid():
            return QRect()
        area = self._edit.blockBoundingGeometry(block).translated(self._edit.contentOffset())
        return QRect(0, round(area.top()), self._edit.viewport().width(), round(area.height()))

    def _on_update(self, area: QRect, n_pixels: int) -> None:
        if n_pixels:
            self.scroll(0, n_pixels)
        self.update()
