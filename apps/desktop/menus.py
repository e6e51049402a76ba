"""Menus of a window."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QMenu, QMenuBar

Item = tuple[str, QKeySequence.StandardKey | str, Callable[[], object]]
"""A text in a menu, its keys, and what is done."""


def add_menu(bar: QMenuBar, title: str, *items: Item) -> QMenu:
    """Returns a new menu at the end of ``bar``."""
    menu = bar.addMenu(title)
    for text, keys, action in items:
        item = QAction(text, bar)
        item.setShortcut(keys)
        item.triggered.connect(_without_argument(action))
        menu.addAction(item)
    return menu


def shown_keys(keys: QKeySequence.StandardKey | str) -> str:
    """Returns keys as this system writes them."""
    return QKeySequence(keys).toString(QKeySequence.SequenceFormat.NativeText)


def _without_argument(action: Callable[[], object]) -> Callable[[bool], None]:
    """Returns ``action`` as a signal with an argument calls it."""

    def act(is_checked: bool) -> None:
        action()

    return act
