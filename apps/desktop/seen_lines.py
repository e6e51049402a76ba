"""The lines that a text field shows."""

from __future__ import annotations

from PySide6.QtGui import QTextBlock
from PySide6.QtWidgets import QPlainTextEdit


def seen_lines(edit: QPlainTextEdit) -> list[QTextBlock]:
    """Returns the lines, or paragraphs, that are seen.

    Qt's own search for what is at a point fails behind ghost text at the end of a document.
    """
    block, lines = edit.firstVisibleBlock(), []
    top = edit.blockBoundingGeometry(block).translated(edit.contentOffset()).top()
    while block.isValid() and top <= edit.viewport().height():
        lines.append(block)
        top += edit.blockBoundingRect(block).height()
        block = block.next()
    return lines
