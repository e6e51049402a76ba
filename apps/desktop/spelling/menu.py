"""What can be done about a wrong word, above what a text field can do anyhow."""

from __future__ import annotations

from functools import partial

from PySide6.QtGui import QAction, QTextCursor
from PySide6.QtWidgets import QMenu

from edgedec.apps.desktop.spelling.speller import Speller


def add_spelling(menu: QMenu, cursor: QTextCursor, speller: Speller) -> None:
    """Puts suggestions for the word that ``cursor`` selects on top of a menu, once they are there.

    menu: not empty; it may be shown before.
    """
    word, first = cursor.selectedText(), menu.actions()[0]
    looking = QAction("looking for words …", menu, enabled=False)
    adding = QAction(f"Add “{word}” to the dictionary", menu)
    adding.triggered.connect(lambda: speller.add(word))
    menu.insertActions(first, [looking, adding])
    menu.insertSeparator(first)

    def put(words: list[str]) -> None:
        if not words:
            looking.setText("no word is like it")
            return
        for suggestion in words:
            action = QAction(suggestion, menu)
            action.triggered.connect(partial(_replace, cursor, word, suggestion))
            menu.insertAction(looking, action)
        menu.removeAction(looking)

    is_gone = []
    menu.destroyed.connect(lambda: is_gone.append(True))
    speller.suggest(word, lambda words: None if is_gone else put(words))


def _replace(cursor: QTextCursor, word: str, other: str) -> None:
    if cursor.selectedText() == word:  # nothing else was written there meanwhile
        cursor.insertText(other)
