"""One document in the window: its text, its file, and the drafts of what is not saved."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import (
    QContextMenuEvent,
    QFont,
    QFontDatabase,
    QKeyEvent,
    QPaintEvent,
    QResizeEvent,
    QTextCursor,
)
from PySide6.QtWidgets import QApplication, QPlainTextEdit, QWidget

from edgedec.apps.desktop import indentation
from edgedec.apps.desktop.code_colours import CodeColours
from edgedec.apps.desktop.line_ends import put_text, text_of
from edgedec.apps.desktop.margin import Margin
from edgedec.apps.desktop.recovery import Draft, Recovery, new_key
from edgedec.apps.desktop.settings import EditorSettings
from edgedec.apps.desktop.spelling.menu import add_spelling
from edgedec.apps.desktop.spelling.speller import Speller
from edgedec.apps.desktop.spelling.underlines import Underlines
from edgedec.apps.desktop.text_file import (
    DocumentError,
    Stamp,
    TextFile,
    read_text_file,
    write_data,
)
from edgedec.widgets import AutocompleteEdit, Suggester

_PROSE = {"", ".md", ".rst", ".tex", ".text", ".txt"}
"""Suffixes of files that are read, not run."""

_KEEP_MS, _MS_PER_CHARACTER = 1000, 1 / 500
"""How long text stays unsaved: long documents are written down less often."""


_DARK = 128
"""Lightness of a background, below which the window is dark."""


class Mode(StrEnum):
    """How a document is shown: lines of words, or of code."""

    PROSE = "prose"
    CODE = "code"


class DocumentEdit(AutocompleteEdit):
    """A document with its file. What is not saved is kept by ``recovery`` until it is."""

    def __init__(
        self,
        suggester: Suggester,
        recovery: Recovery,
        speller: Speller,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(suggester, parent)
        self._speller = speller
        self.underlines = Underlines(self, speller)
        self.colours = CodeColours(self)
        self.margin = Margin(self)
        self.blockCountChanged.connect(self._make_room)
        self.path: Path | None = None
        self._title = "untitled"
        self._recovery = recovery
        self._key = new_key()
        self._tab_width, self._has_tabs = EditorSettings().tab_width, EditorSettings().has_tabs
        self._file = TextFile("")
        self._usual, self._is_mixed = self._file.usual_end, False
        self._keeping = QTimer(self, singleShot=True)
        self._keeping.timeout.connect(self.keep)
        self.textChanged.connect(self._keep_soon)
        self.mode = Mode.PROSE

    @property
    def title(self) -> str:
        """What the document is called."""
        return self.path.name if self.path else self._title

    @property
    def is_modified(self) -> bool:
        """There is text that its file has not."""
        return self.document().isModified()

    @property
    def data(self) -> bytes:
        """The bytes of its file, if it were saved now."""
        text = text_of(self, self._usual, self._is_mixed)
        return TextFile(text, self._file.has_bom).data

    @property
    def is_changed_on_disk(self) -> bool:
        """Another program has written to the file since it was read or saved."""
        stamp = None if self.path is None else Stamp.of(self.path)
        return stamp is not None and stamp != self._file.stamp

    def open(self, path: Path) -> None:
        """Shows a file, from its beginning.

        Raises:
            DocumentError: It cannot be shown whole.
        """
        file = read_text_file(path)
        self._put(file)
        if self.data != file.data:
            raise DocumentError(f"{path} has signs that cannot be shown: it is not a text file")
        self._become(path)
        self.moveCursor(QTextCursor.MoveOperation.Start)

    def reload(self) -> None:
        """Shows the file as it is now, the cursor where it was.

        Raises:
            DocumentError: as `open`.
        """
        if self.path is not None:
            position = self.textCursor().position()
            self.open(self.path)
            self._move_to(position)

    def restore(self, draft: Draft) -> None:
        """Shows text that was not saved, as unsaved text of its file."""
        self._title = draft.title
        if draft.path:
            self._become(Path(draft.path))
        self._put(TextFile(draft.text, draft.has_bom, draft.stamp))
        self.document().setModified(True)
        self._move_to(draft.cursor)
        self.keep()

    def save(self, path: Path | None = None) -> None:
        """Saves the document, under another name if one is given.

        Raises:
            DocumentError: It cannot be saved; nothing is lost.
        """
        path = path or self.path
        if path is None:
            raise DocumentError("the document has no file yet: say where to save it")
        stamp = write_data(path, self.data)
        self._file = TextFile("", self._file.has_bom, stamp)
        self._become(path)
        self.document().setModified(False)
        self.forget_draft()

    def keep(self) -> None:
        """Has unsaved text written down."""
        self._keeping.stop()
        if self.is_modified:
            path = "" if self.path is None else str(self.path)
            text = text_of(self, self._usual, self._is_mixed)
            cursor = self.textCursor().position()
            file = self._file
            draft = Draft(self.title, path, text, file.has_bom, cursor, file.stamp)
            self._recovery.keep(self._key, draft)

    def forget_draft(self) -> None:
        """Unsaved text is saved by now, or not wanted."""
        self._keeping.stop()
        self._recovery.drop(self._key)

    def follow(self, settings: EditorSettings) -> None:
        """Looks, and asks, as the settings say."""
        self.trigger, self.delay_ms = settings.trigger, settings.delay_ms
        self.is_offering = settings.offers_in(self.path)
        self.setFont(self._chosen_font(settings))
        self._tab_width, self._has_tabs = settings.tab_width, settings.has_tabs
        self.setTabStopDistance(self._tab_width * self.fontMetrics().horizontalAdvance(" "))
        wraps = self.mode is Mode.PROSE
        self.setLineWrapMode(
            QPlainTextEdit.LineWrapMode.WidgetWidth if wraps else QPlainTextEdit.LineWrapMode.NoWrap
        )
        self.underlines.turn(self.mode is Mode.PROSE and bool(settings.spelling))
        is_dark = QApplication.palette().base().color().lightness() < _DARK
        self.colours.turn(self.path if self.mode is Mode.CODE else None, is_dark)
        self.margin.is_on = self.mode is Mode.CODE
        self._make_room()
        self.viewport().update()

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:  # noqa: N802
        """Shows what can be done at a place, first of all about a wrong word there."""
        menu = self.createStandardContextMenu(event.pos())
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        if (word := self.underlines.word_at(event.pos())) is not None:
            cursor = self.textCursor()
            cursor.setPosition(word[0])
            cursor.setPosition(word[1], QTextCursor.MoveMode.KeepAnchor)
            add_spelling(menu, cursor, self._speller)
        menu.popup(event.globalPos())

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802
        """Indents, and begins a line of code where the one before began."""
        key, modifiers = event.key(), event.modifiers() & ~Qt.KeyboardModifier.KeypadModifier
        is_plain, cursor = not modifiers, self.textCursor()
        step = indentation.unit(cursor, self._tab_width, self._has_tabs)
        if key == Qt.Key.Key_Backtab:
            indentation.dedent(cursor, step)
        elif self.mode is not Mode.CODE or not is_plain or (key == Qt.Key.Key_Tab and self.offers):
            super().keyPressEvent(event)
            return
        elif key == Qt.Key.Key_Tab:
            indentation.indent(cursor, step)
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            indentation.new_line(cursor, step)
        else:
            super().keyPressEvent(event)
            return
        event.accept()
        self.ensureCursorVisible()

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802
        """Marks the line with the cursor behind the text."""
        self.margin.paint_line()
        super().paintEvent(event)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802
        """Keeps the line numbers beside the text."""
        super().resizeEvent(event)
        self.margin.place()

    def go_to_line(self, number: int) -> None:
        """Moves the cursor to the beginning of a line, counted from 1; to the last beyond it."""
        block = self.document().findBlockByNumber(min(number, self.blockCount()) - 1)
        self._move_to(block.position())
        self.centerCursor()

    def _chosen_font(self, settings: EditorSettings) -> QFont:
        is_code, kinds = self.mode is Mode.CODE, QFontDatabase.SystemFont
        font = QFontDatabase.systemFont(kinds.FixedFont if is_code else kinds.GeneralFont)
        if family := settings.code_font if is_code else settings.prose_font:
            font.setFamilies([family, *font.families()])
        font.setPointSize(settings.font_size)
        return font

    def _make_room(self) -> None:
        self.setViewportMargins(self.margin.wanted_width, 0, 0, 0)
        self.margin.place()

    def _become(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self.mode = Mode.PROSE if path.suffix.lower() in _PROSE else Mode.CODE

    def _put(self, file: TextFile) -> None:
        self._file, self._usual = replace(file, text=""), file.usual_end
        self._is_mixed = put_text(self, file.text, self._usual)

    def _move_to(self, position: int) -> None:
        cursor = self.textCursor()
        cursor.setPosition(min(position, self.document().characterCount() - 1))
        self.setTextCursor(cursor)

    def _keep_soon(self) -> None:
        if not self._keeping.isActive() and self.is_modified:
            n = self.document().characterCount()
            self._keeping.start(int(_KEEP_MS + n * _MS_PER_CHARACTER))
