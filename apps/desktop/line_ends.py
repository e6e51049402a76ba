"""Line ends in a text field, which has one kind of its own.

New lines end as most lines of the file do; this is not stored. A line that ends otherwise
says so in the format of its block, which goes along with undo, and with a line that is parted.
"""

from __future__ import annotations

from PySide6.QtGui import QTextBlock, QTextBlockFormat, QTextCursor, QTextFormat
from PySide6.QtWidgets import QPlainTextEdit

from edgedec.apps.desktop.text_file import LINE_END

_END = int(QTextFormat.Property.UserProperty) + 1


def put_text(edit: QPlainTextEdit, text: str, usual: str) -> bool:
    """Makes ``text`` all that there is in a text field, nothing of which can be undone.

    Returns:
        Whether some lines end otherwise than as ``usual``.
    """
    edit.setPlainText(LINE_END.sub("\n", text))
    ends = LINE_END.findall(text)
    if ends.count(usual) == len(ends):
        return False
    document = edit.document()
    document.setUndoRedoEnabled(False)
    cursor = QTextCursor(document)
    cursor.beginEditBlock()
    block = document.begin()
    for end in ends:
        if end != usual:
            kept = QTextBlockFormat()
            kept.setProperty(_END, end)
            cursor.setPosition(block.position())
            cursor.mergeBlockFormat(kept)
        block = block.next()
    cursor.endEditBlock()
    document.setUndoRedoEnabled(True)
    document.setModified(False)
    return True


def text_of(edit: QPlainTextEdit, usual: str, is_mixed: bool) -> str:
    """Returns the text of a field, its lines ended as they were, and new ones as ``usual``."""
    document = edit.document()
    lines = document.toRawText().split("\u2029")
    if not is_mixed:
        return usual.join(lines)
    pieces, block = [lines[0]], document.begin()
    for line in lines[1:]:
        pieces += (_end(block) or usual, line)
        block = block.next()
    return "".join(pieces)


def _end(block: QTextBlock) -> str:
    return str(block.blockFormat().property(_END) or "")
