"""Find and replace, in a bar below the text."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent, QTextCursor, QTextDocument
from PySide6.QtWidgets import QCheckBox, QHBoxLayout, QLabel, QLineEdit, QPushButton, QWidget

from edgedec.widgets import AutocompleteEdit

_Flag = QTextDocument.FindFlag


class FindBar(QWidget):
    """Looks for a text in the document that ``current`` returns, from the cursor on and around."""

    closed = Signal()

    def __init__(
        self, current: Callable[[], AutocompleteEdit | None], parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self._current = current
        self.wanted, self.replacement = QLineEdit(), QLineEdit()
        self.wanted.setPlaceholderText("Find")
        self.replacement.setPlaceholderText("Replace by")
        self.has_case = QCheckBox("Match case")
        self.told = QLabel()
        layout = QHBoxLayout(self)
        layout.setContentsMargins(6, 2, 6, 2)
        layout.addWidget(self.wanted, 1)
        layout.addWidget(_button("Next", self.find_next))
        layout.addWidget(_button("Previous", self.find_previous))
        layout.addWidget(self.has_case)
        layout.addWidget(self.replacement, 1)
        layout.addWidget(_button("Replace", self.replace))
        layout.addWidget(_button("All", self.replace_all))
        layout.addWidget(self.told)
        self.wanted.returnPressed.connect(self.find_next)
        self.replacement.returnPressed.connect(self.replace)

    def begin(self) -> None:
        """Shows the bar, with what is selected in it."""
        edit = self._current()
        selected = "" if edit is None else edit.textCursor().selectedText()
        if selected and "\u2029" not in selected:
            self.wanted.setText(selected)
        self.show()
        self.wanted.setFocus()
        self.wanted.selectAll()

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
        """Replaces all that is looked for, in one step of undo, and tells how many."""
        edit, wanted = self._current(), self.wanted.text()
        if edit is None or not wanted:
            return
        document, n = edit.document(), 0
        step = QTextCursor(document)
        step.beginEditBlock()
        found = document.find(wanted, 0, self._flags)
        while not found.isNull():
            found.insertText(self.replacement.text())
            n += 1
            found = document.find(wanted, found, self._flags)
        step.endEditBlock()
        self.told.setText(f"{n} replaced")

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802
        """Closes the bar on Esc."""
        if event.key() == Qt.Key.Key_Escape:
            self.hide()
            self.closed.emit()
        else:
            super().keyPressEvent(event)

    @property
    def _flags(self) -> QTextDocument.FindFlag:
        return _Flag.FindCaseSensitively if self.has_case.isChecked() else _Flag(0)

    def _is_wanted(self, text: str) -> bool:
        wanted = self.wanted.text()
        if not self.has_case.isChecked():
            text, wanted = text.casefold(), wanted.casefold()
        return bool(wanted) and text == wanted

    def _find(self, way: QTextDocument.FindFlag) -> bool:
        edit, wanted = self._current(), self.wanted.text()
        if edit is None or not wanted:
            return False
        document, flags = edit.document(), self._flags | way
        found = document.find(wanted, edit.textCursor(), flags)
        if found.isNull():  # around the end
            end = document.characterCount() - 1 if way else 0
            found = document.find(wanted, end, flags)
        self.told.setText("" if not found.isNull() else "not found")
        if found.isNull():
            return False
        edit.setTextCursor(found)
        return True


def _button(text: str, action: Callable[[], object]) -> QPushButton:
    button = QPushButton(text)
    button.clicked.connect(lambda: action())
    return button
