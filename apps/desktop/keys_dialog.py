"""The list of keys."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QDialog, QFormLayout, QLabel, QWidget

_TYPING = {
    "Tab": "Take the suggestion; without one, indent",
    "Ctrl+Right": "Take a word of the suggestion",
    "Esc": "Dismiss the suggestion",
    "Alt+]  Alt+[": "Next alternative, the one before",
    "Ctrl+Space": "Ask for a suggestion",
    "Shift+Tab": "Dedent",
}


class KeysDialog(QDialog):
    """Lists the keys of the menus, and those of the text."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle("Keys")
        self.form = QFormLayout(self)
        for keys, text in (_TYPING | _of_menus(parent)).items():
            self.form.addRow(f"<b>{keys}</b>", QLabel(text))


def show_keys(parent: QWidget) -> None:
    """Opens the list."""
    KeysDialog(parent).show()


def _of_menus(parent: QWidget) -> dict[str, str]:
    """Returns what the keys of a window's actions do."""
    return {
        action.shortcut().toString(QKeySequence.SequenceFormat.NativeText): action.text()
        .replace("&", "")
        .rstrip("…")
        for action in parent.findChildren(QAction)
        if not action.shortcut().isEmpty()
    }
