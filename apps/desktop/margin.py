"""Line numbers beside the text of a program."""

from __future__ import annotations

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QApplication, QPlainTextEdit, QTextEdit, QWidget

_GAP = 8
"""Units: pixels, on either side of a number."""


class Margin(QWidget):
    """Numbers the lines that are seen, and marks the one with the cursor.

    The edit's class has to pass on its resizing, and to set the margin's width, which Qt keeps for
    subclasses: `place` is called for both.
    """

    def __init__(self, edit: QPlainTextEdit) -> None:
        super().__init__(edit)
        self._edit = edit
        self.is_on = False
        edit.updateRequest.connect(self._on_update)
        edit.cursorPositionChanged.connect(self.mark)

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

    def mark(self) -> None:
        """Marks the line with the cursor."""
        marks = []
        if self.is_on:
            mark = QTextEdit.ExtraSelection()
            mark.cursor = self._edit.textCursor()
            mark.cursor.clearSelection()
            mark.format.setBackground(QApplication.palette().alternateBase())
            mark.format.setProperty(mark.format.Property.FullWidthSelection, True)
            marks.append(mark)
        self._edit.setExtraSelections(marks)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802
        """Paints the numbers of the lines that are seen."""
        painter, palette = QPainter(self), QApplication.palette()
        painter.setFont(self._edit.font())
        painter.fillRect(event.rect(), palette.base())
        here = self._edit.textCursor().blockNumber()
        block = self._edit.cursorForPosition(self._edit.viewport().rect().topLeft()).block()
        while block.isValid():
            cursor = self._edit.textCursor()
            cursor.setPosition(block.position())
            top = self._edit.cursorRect(cursor).top()
            if top > self.height():
                break
            is_here = block.blockNumber() == here
            painter.setPen((palette.text() if is_here else palette.placeholderText()).color())
            line = QRect(0, top, self.width() - _GAP, self._edit.fontMetrics().height())
            painter.drawText(line, Qt.AlignmentFlag.AlignRight, str(block.blockNumber() + 1))
            block = block.next()

    def _on_update(self, area: QRect, n_pixels: int) -> None:
        if n_pixels:
            self.scroll(0, n_pixels)
        self.update()
