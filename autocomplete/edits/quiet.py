"""Edits that are never shown, however likely a model finds them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

from edgedec.autocomplete.document import Document
from edgedec.autocomplete.edits.changes import Change
from edgedec.autocomplete.edits.edit import Edit
from edgedec.autocomplete.edits.lines import lines_of

_N_DISMISSED = 64
_WORD_AT_END = re.compile(r"\w+\Z")


class Quiet:
    """Knows what was dismissed."""

    def __init__(self) -> None:
        self._dismissed: deque[tuple[str, str, str]] = deque(maxlen=_N_DISMISSED)
        self._offered: dict[int, tuple[str, str, str]] = {}

    def dismiss(self, edit: Edit) -> None:
        """An edit was not wanted."""
        if (key := self._offered.pop(edit.version, None)) is not None:
            self._dismissed.append(key)

    def is_unwanted(self, edit: Edit, document: Document, changes: Sequence[Change]) -> bool:
        """Says whether an edit is one that nobody wants to see.

        It changes white space alone, takes back what was just written, changes the word that is
        being typed, or was dismissed.
        """
        old = document.text[edit.start : edit.end]
        key = (edit.name, old, edit.text)
        if old.split() == edit.text.split() or key in self._dismissed:
            return True
        if _takes_back(edit, old, changes) or _is_in_word(edit, document):
            return True
        self._offered = {edit.version: key}
        return False


def _takes_back(edit: Edit, old: str, changes: Sequence[Change]) -> bool:
    """Says whether an edit makes lines what they were before a change."""
    was, becomes = lines_of(old), lines_of(edit.text)
    return any(
        change.name == edit.name and _holds(was, change.after, change.before, becomes)
        for change in changes
    )


def _holds(
    was: Sequence[str], after: Sequence[str], before: Sequence[str], becomes: Sequence[str]
) -> bool:
    """Says whether ``was`` with ``after`` turned into ``before`` somewhere is ``becomes``."""
    n = len(after)
    return any(
        tuple(was[i : i + n]) == tuple(after)
        and [*was[:i], *before, *was[i + n :]] == list(becomes)
        for i in range(len(was) - n + 1)
    )


def _is_in_word(edit: Edit, document: Document) -> bool:
    """Says whether an edit changes the word that ends at the cursor, which is being typed."""
    word = _WORD_AT_END.search(document.text[: document.cursor])
    return word is not None and word.start() <= edit.jump <= word.end()
