"""Lengths in UTF-16, in which Qt counts, and the text of Qt's own paragraphs."""

from __future__ import annotations

from PySide6.QtGui import QTextCursor, QTextDocument

from edgedec.autocomplete import Document

_GRID = 4096
"""Units by which the beginning of a part of a document moves, so that most keys leave it."""


def n_units(text: str) -> int:
    """Returns the length of ``text`` in UTF-16."""
    return len(text) + sum(character > "\uffff" for character in text)


def text_between(document: QTextDocument, start: int, stop: int) -> str:
    """Returns the text between two positions; where one parts a character, without that."""
    cursor = QTextCursor(document)
    cursor.setPosition(start)
    cursor.setPosition(stop, QTextCursor.MoveMode.KeepAnchor)
    return whole(cursor.selectedText()).replace("\u2029", "\n")


def whole(text: str) -> str:
    """Returns ``text`` with a sign in the place of surrogates that are alone."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def document_near(document: QTextDocument, at: int, reach: int, name: str) -> Document:
    """Returns the part of a document within twice ``reach`` units of a position."""
    start = max(0, at - 2 * reach) // _GRID * _GRID
    stop = min(document.characterCount() - 1, at + 2 * reach)
    before = text_between(document, start, at)
    return Document(before + text_between(document, at, stop), len(before), name, start)
