"""The next edit in a text field: what goes is struck, what comes stands beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from PySide6.QtGui import QColor, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QPlainTextEdit, QTextEdit

from edgedec.autocomplete import Document
from edgedec.autocomplete.edits import Edit
from edgedec.autocomplete.edits.replacements import Replacement, replacements
from edgedec.widgets.ghost_text import GhostText
from edgedec.widgets.suggester import Suggester
from edgedec.widgets.units import document_near, n_units

_MAX_UNITS = 500_000
"""Of documents in which edits are predicted: they are read whole after a key."""

_ADDED = "#1a7f37", "#5fbf77"
"""Colours of new text, on light and on dark ground."""

_DARK = 128
"""Lightness of a background, below which it is dark."""

Strike = Callable[[Sequence[QTextEdit.ExtraSelection]], None]
"""Called with all places that are to be struck."""


class NextEdit:
    """Asks for the next edit of a text field, shows it, jumps to it and takes it.

    shown: what is on offer; None where there is nothing. is_taking: the text changes by that.
    """

    def __init__(self, field: QPlainTextEdit, suggester: Suggester, strike: Strike) -> None:
        self._field, self._suggester, self._strike = field, suggester, strike
        self.shown: Edit | None = None
        self.is_taking = False
        self._text = ""  # of the document, when it was asked about
        self._ghosts: list[GhostText] = []
        self._seen_line: int | None = None  # of a change that the predictor may not know yet

    def ask(self, name: str, jumps: bool = False) -> None:
        """Shows the next edit, if one follows; ``jumps``: and jumps there."""
        document, self._seen_line = self._whole(name), None
        if document is None:
            return
        revision = self._field.document().revision()

        def receive(edit: Edit) -> None:
            if self._field.document().revision() == revision and self._field.hasFocus():
                self._text = document.text
                self.show(edit)
                if jumps:
                    self.jump()

        self._suggester.ask_edit(document, receive)

    def see(self, name: str) -> None:
        """Has the predictor know the text as it is, so that it knows later changes."""
        predictor = self._suggester.predictor
        if predictor is not None and (document := self._whole(name)) is not None:
            predictor.see(document)

    def note_change(self) -> None:
        """The text has changed where the cursor is."""
        self._seen_line = self._field.textCursor().blockNumber()

    def note_move(self, name: str) -> None:
        """The cursor has moved: what is changed far from the last change is another change."""
        line = self._field.textCursor().blockNumber()
        if self._seen_line is not None and abs(line - self._seen_line) > 1:
            self.see(name)
            self._seen_line = None
        if self.shown is not None:
            self.show(self.shown)  # it makes room for the cursor

    def show(self, edit: Edit) -> None:
        """Shows an edit of the text that was asked about."""
        self.hide()
        self.shown = edit
        struck = []
        for start, end, text in self._places(edit):
            if end > start:
                struck.append(self._struck(start, end))
            if text:
                self._show_text(start, end, text)
        if not self._is_in_sight(edit):
            where = f"  Tab: edit in line {edit.line + 1}"
            colour = self._field.palette().placeholderText().color()
            self._ghost(_end_of(self._field.textCursor()), where, colour)
        self._strike(struck)

    def hide(self) -> Edit | None:
        """Takes it away; returns what it was."""
        edit, self.shown = self.shown, None
        while self._ghosts:
            self._ghosts.pop().hide()
        if edit is not None:
            self._strike([])
        return edit

    def jump_or_take(self, name: str) -> None:
        """Moves the cursor to the edit; makes it, where the cursor is there already."""
        assert self.shown is not None
        first, last = self._at(self.shown.jump), self._at(self.shown.end - 1)
        here = self._field.textCursor().block()
        find = self._field.document().findBlock
        if find(first).blockNumber() <= here.blockNumber() <= find(max(first, last)).blockNumber():
            self._take(name)
        else:
            self.jump()

    def jump(self) -> None:
        """Moves the cursor to the first change."""
        if self.shown is not None:
            cursor = self._field.textCursor()
            cursor.setPosition(self._at(self.shown.jump))
            self._field.setTextCursor(cursor)
            self._field.ensureCursorVisible()

    def dismiss(self) -> None:
        """Takes the edit away for ever."""
        edit, predictor = self.hide(), self._suggester.predictor
        if edit is not None and predictor is not None:
            predictor.dismiss(edit)

    def turn(self, name: str) -> None:
        """Shows another edit and jumps there."""
        edit, predictor = self.hide(), self._suggester.predictor
        if edit is not None and predictor is not None:
            predictor.skip(edit)
            self.ask(name, jumps=True)

    def _take(self, name: str) -> None:
        """Makes the edit, a step of undo of its own, and asks for what follows."""
        edit, text = self.hide(), self._text
        assert edit is not None
        cursor, self.is_taking = QTextCursor(self._field.document()), True
        cursor.beginEditBlock()
        for part in reversed(replacements(text[edit.start : edit.end], edit.text)):
            cursor.setPosition(self._at(edit.start + part.start))
            cursor.setPosition(self._at(edit.start + part.end), QTextCursor.MoveMode.KeepAnchor)
            cursor.insertText(part.text)
        cursor.endEditBlock()
        self.is_taking = False
        self._field.ensureCursorVisible()
        if self._suggester.predictor is not None:
            self._suggester.predictor.accept(edit)
        self.ask(name)

    def _whole(self, name: str) -> Document | None:
        """Returns the document; None if it is too long to be read after each key."""
        document, at = self._field.document(), self._field.textCursor().position()
        n = document.characterCount()
        return None if n > _MAX_UNITS else document_near(document, at, n, name)

    def _at(self, character: int) -> int:
        """Returns the position of a character of the text. Units: UTF-16."""
        return n_units(self._text[:character])

    def _places(self, edit: Edit) -> Iterator[tuple[int, int, str]]:
        """Yields the positions of what is struck, and the text beside it: one for each line."""
        old = self._text[edit.start : edit.end]
        for part in _by_line(old, replacements(old, edit.text)):
            start, end = self._at(edit.start + part.start), self._at(edit.start + part.end)
            is_lines = "\n" in part.text or "\n" in old[part.start : part.end]
            yield start, end, "\n" * (is_lines and end > start) + part.text

    def _show_text(self, start: int, end: int, text: str) -> None:
        """Shows new text behind a position; never before the cursor, which Qt would misplace."""
        document, cursor = self._field.document(), self._field.textCursor()
        block = document.findBlock(end)
        if start == end == block.position() and text.endswith("\n") and block.blockNumber():
            end, text = end - 1, "\n" + text[:-1]  # whole lines stand below the line before them
            block = block.previous()
        if cursor.block() == block and cursor.position() > end:
            end = _end_of(cursor)
        is_dark = self._field.palette().base().color().lightness() < _DARK
        self._ghost(end, text, QColor(_ADDED[is_dark]))

    def _ghost(self, position: int, text: str, colour: QColor) -> None:
        ghost = GhostText(self._field.document())
        ghost.show(position, [(text, colour)])
        self._ghosts.append(ghost)

    def _struck(self, start: int, end: int) -> QTextEdit.ExtraSelection:
        mark = QTextEdit.ExtraSelection()
        cursor, form = QTextCursor(self._field.document()), QTextCharFormat()
        cursor.setPosition(start)
        cursor.setPosition(end, QTextCursor.MoveMode.KeepAnchor)
        form.setFontStrikeOut(True)
        mark.cursor, mark.format = cursor, form
        return mark

    def _is_in_sight(self, edit: Edit) -> bool:
        cursor = QTextCursor(self._field.document())
        cursor.setPosition(self._at(edit.jump))
        return self._field.viewport().rect().intersects(self._field.cursorRect(cursor))


def _by_line(old: str, parts: list[Replacement]) -> list[Replacement]:
    """Joins parts that share a line, since new text has one place in a line."""
    joined: list[Replacement] = []
    for part in parts:
        before = joined[-1] if joined else None
        if before is not None and "\n" not in (between := old[before.end : part.start]):
            text = before.text + between + part.text
            joined[-1] = Replacement(before.start, part.end, text)
        else:
            joined.append(part)
    return joined


def _end_of(cursor: QTextCursor) -> int:
    """Returns where the line of a cursor ends."""
    block = cursor.block()
    return block.position() + block.length() - 1
