"""The list of keys."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QMainWindow,
    QVBoxLayout,
)

_TYPING = {
    "Take the suggestion; without one, indent": "Tab",
    "Take one word of the suggestion": "Ctrl+Right",
    "Dismiss the suggestion": "Esc",
    "Next alternative": "Alt+]",
    "Previous alternative": "Alt+[",
    "Ask for a suggestion": "Ctrl+Space",
    "Dedent": "Shift+Tab",
}

_KEY_WIDTH = 90
"""Units: pixels."""


class KeysDialog(QDialog):
    """Lists the keys of the text, and those of each menu. keys: what each key does."""

    def __init__(self, parent: QMainWindow) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle("Keys")
        groups = {"While writing": _TYPING, **_of_menus(parent)}
        self.keys = {key: text for group in groups.values() for text, key in group.items()}
        columns = QHBoxLayout()
        columns.setSpacing(36)
        left, right = QVBoxLayout(), QVBoxLayout()
        for column in (left, right):
            column.setSpacing(20)
        for i, (title, group) in enumerate(groups.items()):
            (left if i < 2 else right).addLayout(_table(title, group))
        for column in (left, right):
            column.addStretch(1)
            columns.addLayout(column)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        buttons.rejected.connect(self.close)
        layout = QVBoxLayout(self)
        layout.addLayout(columns)
        layout.addWidget(buttons)


def show_keys(parent: QMainWindow) -> None:
    """Opens the list."""
    KeysDialog(parent).show()


def _table(title: str, keys: dict[str, str]) -> QGridLayout:
    grid = QGridLayout()
    grid.setColumnStretch(0, 1)
    grid.setColumnMinimumWidth(1, _KEY_WIDTH)
    grid.setHorizontalSpacing(28)
    grid.setVerticalSpacing(6)
    grid.addWidget(QLabel(f"<b>{title}</b>"), 0, 0)
    for i, (text, key) in enumerate(keys.items(), 1):
        grid.addWidget(QLabel(text), i, 0)
        grid.addWidget(QLabel(key), i, 1)
    return grid


def _of_menus(window: QMainWindow) -> dict[str, dict[str, str]]:
    """Returns the keys of a window's menus, by what they do."""
    keys_of_menus = {}
    for menu in window.menuBar().actions():
        actions = (item for item in window.findChildren(QAction) if item in _items(menu))
        keys = {
            _plain(action): _key(action) for action in actions if not action.shortcut().isEmpty()
        }
        if keys:
            keys_of_menus[_plain(menu)] = keys
    return keys_of_menus


def _items(menu: QAction) -> list[QAction]:
    shown = menu.menu()
    return [] if shown is None else list(shown.actions())  # type: ignore[attr-defined]


def _plain(action: QAction) -> str:
    return action.text().replace("&", "").rstrip("…")


def _key(action: QAction) -> str:
    return action.shortcut().toString(QKeySequence.SequenceFormat.NativeText)
