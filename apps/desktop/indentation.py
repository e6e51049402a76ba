"""Keys that move lines of a program to the right and to the left."""

from __future__ import annotations

from PySide6.QtGui import QTextBlock, QTextCursor

_OPENING = (":", "{", "(", "[")


def unit(cursor: QTextCursor, width: int, has_tabs: bool) -> str:
    """Returns one step to the right, as the document's first indented line has it.

    Without such a line it is a tab if ``has_tabs``, else as many spaces as ``width``.
    """
    block = cursor.document().begin()
    while block.isValid():
        if (text := block.text())[:1] in ("\t", " ") and text.strip():
            return "\t" if text[0] == "\t" else " " * width
        block = block.next()
    return "\t" if has_tabs else " " * width


def new_line(cursor: QTextCursor, step: str) -> None:
    """Begins a line where the one before began; a step further if that one opens a block."""
    before = cursor.block().text()[: cursor.positionInBlock()]
    blank = before[: len(before) - len(before.lstrip())]
    cursor.insertText("\n" + blank + step * before.rstrip().endswith(_OPENING))


def indent(cursor: QTextCursor, step: str) -> None:
    """Moves the selected lines to the right; without a selection, writes up to the next stop."""
    if not cursor.hasSelection():
        column = cursor.positionInBlock()
        cursor.insertText(step if step == "\t" else " " * (len(step) - column % len(step)))
        return
    cursor.beginEditBlock()
    for block in _blocks(cursor):
        if block.length() > 1:
            QTextCursor(block).insertText(step)
    cursor.endEditBlock()


def dedent(cursor: QTextCursor, step: str) -> None:
    """Moves the line with the cursor, or the selected ones, to the left."""
    cursor.beginEditBlock()
    for block in _blocks(cursor):
        text, start = block.text(), QTextCursor(block)
        n_blank = len(text) - len(text.lstrip(" "))
        n = 1 if text.startswith("\t") else min(n_blank, max(len(step), 1))
        start.setPosition(block.position() + n, QTextCursor.MoveMode.KeepAnchor)
        start.removeSelectedText()
    cursor.endEditBlock()


def _blocks(cursor: QTextCursor) -> list[QTextBlock]:
    """Returns the lines of a selection; the last only if something of it is selected."""
    document, end = cursor.document(), cursor.selectionEnd()
    block = document.findBlock(cursor.selectionStart())
    blocks = [block]
    while (block := block.next()).isValid() and block.position() < end:
        blocks.append(block)
    return blocks
