"""Find and replace, in a bar below the text: places are counted and highlighted."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QColor, QHideEvent, QKeyEvent, QTextCursor, QTextDocument
from PySide6.QtWidgets import (
    QCheckBox,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QPushButton,
    QTextEdit,
    QWidget,
)

from edgedec.apps.desktop.document_edit import DocumentEdit

_Flag = QTextDocument.FindFlag

_MAX = 1000
"""Places that are counted and highlighted."""

_REST_MS = 80
"""Between a change and a new count."""


class FindBar(QWidget):
    """Looks for a text in the document that ``current`` returns, from the cursor on and around.

    colour: behind the places that were found.
    """

    closed = Signal()

    def __init__(
        self,
        current: Callable[[], DocumentEdit | None],
        colour: Callable[[], QColor],
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._current, self._colour = current, colour
        self._marked: DocumentEdit | None = None
        self.pattern, self.replacement = QLineEdit(), QLineEdit()
        self.pattern.setPlaceholderText("Find")
        self.replacement.setPlaceholderText("Replace by")
        self.has_case = QCheckBox("Match case")
        self.status = QLabel()
        layout = QHBoxLayout(self)
        layout.setContentsMargins(6, 2, 6, 2)
        layout.addWidget(self.pattern, 1)
        layout.addWidget(_button("Next", self.find_next))
        layout.addWidget(_button("Previous", self.find_previous))
        layout.addWidget(self.has_case)
        layout.addWidget(self.replacement, 1)
        layout.addWidget(_button("Replace", self.replace))
        layout.addWidget(_button("All", self.replace_all))
        layout.addWidget(self.status)
        self._counting = QTimer(self, singleShot=True, interval=_REST_MS)
        self._counting.timeout.connect(self.count)
        self.pattern.textChanged.connect(self.count_soon)
        self.has_case.toggled.connect(self.count_soon)
        self.pattern.returnPressed.connect(self.find_next)
        self.replacement.returnPressed.connect(self.replace)

    def begin(self) -> None:
        """Shows the bar, with what is selected in it."""
        edit = self._current()
        selected = "" if edit is None else edit.textCursor().selectedText()
        if selected and "\u2029" not in selected:
            self.pattern.setText(selected)
        self.show()
        self.pattern.setFocus()
        self.pattern.selectAll()
        self.count()

    def count_soon(self) -> None:
        """Counts again: the text changed, or another document is seen."""
        if self.isVisible() and not self._counting.isActive():
            self._counting.start()

    def count(self) -> None:
        """Highlights the places in the document, and shows how many there are."""
        edit = self._current()
        if self._marked is not None and self._marked is not edit:
            self._marked.setExtraSelections([])
        self._marked = edit
        if edit is None:
            return
        places = self._places(edit.document()) if self.isVisible() else []
        edit.setExtraSelections([self._mark(place) for place in places])
        self.status.setText(self._state(places, edit.textCursor()) if self.pattern.text() else "")

    def forget(self, edit: DocumentEdit) -> None:
        """A document is closed."""
        if self._marked is edit:
            self._marked = None

    def find_next(self) -> bool:
        """Selects the next place; returns whether there is one."""
        return self._find(_Flag(0))

    def find_previous(self) -> bool:
        """Selects the place before; returns whether there is one."""
        return self._find(_Flag.FindBackward)

    def replace(self) -> None:
        """Replaces what is selected, if it is what is looked for, and goes on."""
        edit = self._current()
        if edit is not None and self._is_wanted(edit.textCursor().selectedText()):
            edit.textCursor().insertText(self.replacement.text())
        self.find_next()

    def replace_all(self) -> None:
        """Replaces all that is looked for, in one step of undo, and shows how many."""
        edit, text = self._current(), self.pattern.text()
        if edit is None or not text:
            return
        document, n = edit.document(), 0
        step = QTextCursor(document)
        step.beginEditBlock()
        match = document.find(text, 0, self._flags)
        while not match.isNull():
            match.insertText(self.replacement.text())
            n += 1
            match = document.find(text, match, self._flags)
        step.endEditBlock()
        self.count()
        self.status.setText(f"{n:,} replaced")

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802
        """Closes the bar on Esc."""
        if event.key() == Qt.Key.Key_Escape:
            self.hide()
            self.closed.emit()
        else:
            super().keyPressEvent(event)

    def hideEvent(self, event: QHideEvent) -> None:  # noqa: N802
        """Takes the highlights away."""
        super().hideEvent(event)
        if self._marked is not None:
            self._marked.setExtraSelections([])

    @property
    def _flags(self) -> QTextDocument.FindFlag:
        return _Flag.FindCaseSensitively if self.has_case.isChecked() else _Flag(0)

    def _is_wanted(self, text: str) -> bool:
        sought = self.pattern.text()
        if not self.has_case.isChecked():
            text, sought = text.casefold(), sought.casefold()
        return bool(sought) and text == sought

    def _find(self, way: QTextDocument.FindFlag) -> bool:
        edit, text = self._current(), self.pattern.text()
        if edit is None or not text:
            return False
        document, flags = edit.document(), self._flags | way
        match = document.find(text, edit.textCursor(), flags)
        if match.isNull():  # around the end
            end = document.characterCount() - 1 if way else 0
            match = document.find(text, end, flags)
        if not match.isNull():
            edit.setTextCursor(match)
        self.count()
        return not match.isNull()

    def _places(self, document: QTextDocument) -> list[QTextCursor]:
        """Returns the places of what is looked for: one more than are shown if there are more."""
        text, places = self.pattern.text(), list[QTextCursor]()
        match = document.find(text, 0, self._flags) if text else QTextCursor()
        while not match.isNull() and len(places) <= _MAX:
            places.append(match)
            match = document.find(text, match, self._flags)
        return places

    def _mark(self, place: QTextCursor) -> QTextEdit.ExtraSelection:
        mark = QTextEdit.ExtraSelection()
        mark.cursor = place
        mark.format.setBackground(self._colour())
        return mark

    def _state(self, places: list[QTextCursor], cursor: QTextCursor) -> str:
        if not places:
            return "not found"
        n = f"{_MAX:,}+" if len(places) > _MAX else f"{len(places):,}"
        starts = [place.selectionStart() for place in places]
        if self._is_wanted(cursor.selectedText()) and cursor.selectionStart() in starts:
            return f"{starts.index(cursor.selectionStart()) + 1:,} of {n}"
        return f"{n} found"


def _button(text: str, action: Callable[[], object]) -> QPushButton:
    button = QPushButton(text)
    button.clicked.connect(lambda: action())
    return button
