"""Edits that are never shown, however likely a model finds them."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgedec.autocomplete.document import Document
from edgedec.autocomplete.edits.changes import Change
from edgedec.autocomplete.edits.edit import Edit
from edgedec.autocomplete.edits.lines import lines_of

_N_REMEMBERED = 64
_WORD = re.compile(r"\w+")
_WORD_OR_SIGN = re.compile(r"\w+|[^\w\s]")
_WORD_AT_END = re.compile(r"\w+\Z")


@dataclass(frozen=True)
class _Offered:
    """An edit that was offered. removed, added: how often each line that it takes out, or puts in,
    stands in the document with it."""

    name: str
    old: str
    new: str
    removed: Mapping[str, int]
    added: Mapping[str, int]

    @classmethod
    def of(cls, edit: Edit, text: str) -> _Offered:
        """Describes an edit of a document's ``text``."""
        old = text[edit.start : edit.end]
        before, after = Counter(lines_of(old)), Counter(lines_of(edit.text))
        then = Counter(lines_of(edit.applied(text)))
        removed, added = (
            {line: then[line] for line in lines} for lines in (before - after, after - before)
        )
        return cls(edit.name, old, edit.text, removed, added)

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes it the same edit at another time."""
        return self.name, self.old, self.new

    def is_taken_back(self, again: _Offered, now: Mapping[str, int]) -> bool:
        """Says whether somebody took this edit, and took back what ``again`` would do once more.

        now: how often each line stands in the document.
        """
        if again.removed:
            both = self.removed.keys() & again.removed.keys()
            return any(now.get(line, 0) > self.removed[line] for line in both)
        both = self.added.keys() & again.added.keys()
        return any(now.get(line, 0) < self.added[line] for line in both)


class Quiet:
    """Knows what was dismissed, and what was taken and then taken back."""

    def __init__(self) -> None:
        self._dismissed: deque[tuple[str, str, str]] = deque(maxlen=_N_REMEMBERED)
        self._taken: deque[_Offered] = deque(maxlen=_N_REMEMBERED)
        self._skipped: set[tuple[str, str, str]] = set()
        self._skipped_in = ""  # the text in which they were skipped
        self._offered: dict[int, _Offered] = {}

    def dismiss(self, edit: Edit) -> None:
        """An edit was not wanted."""
        if (offered := self._offered.pop(edit.version, None)) is not None:
            self._dismissed.append(offered.key)

    def skip(self, edit: Edit) -> None:
        """An edit is not wanted before the text is another."""
        if (offered := self._offered.get(edit.version)) is not None:
            self._skipped.add(offered.key)

    def accept(self, edit: Edit) -> None:
        """An edit was taken."""
        if (offered := self._offered.pop(edit.version, None)) is not None:
            self._taken.append(offered)

    def is_refused(self, edit: Edit, document: Document) -> bool:
        """Says whether an edit was dismissed or skipped, or was taken and then taken back.

        An edit that was not is remembered as the one that is offered now.
        """
        if document.text != self._skipped_in:
            self._skipped.clear()
            self._skipped_in = document.text
        again = _Offered.of(edit, document.text)
        now = Counter(lines_of(document.text))
        if again.key in self._dismissed or again.key in self._skipped:
            return True
        if any(
            taken.name == again.name and taken.is_taken_back(again, now) for taken in self._taken
        ):
            return True
        self._offered = {edit.version: again}
        return False


def is_unwanted(edit: Edit, document: Document, changes: Sequence[Change]) -> bool:
    """Says whether an edit is one that nobody wants to see.

    It changes white space alone, takes back what was just written, or changes the word that is
    being typed.
    """
    old = document.text[edit.start : edit.end]
    is_blank = old.split() == edit.text.split()
    return is_blank or _takes_back(edit, old, changes) or _is_in_word(edit, document)


def _takes_back(edit: Edit, old: str, changes: Sequence[Change]) -> bool:
    """Says whether all lines of an edit are those of one change, the other way round.

    Empty lines do not count, nor does the place: who moves a line back takes it back.
    """
    was, becomes = (Counter(filter(str.strip, lines_of(text))) for text in (old, edit.text))
    removed, added = was - becomes, becomes - was
    return any(
        change.name == edit.name
        and removed <= Counter(change.after)
        and added <= Counter(change.before)
        for change in changes
    )


def is_related(edit: Edit, document: Document, changes: Sequence[Change]) -> bool:
    """Says whether an edit does a part of what a change did.

    It takes out something that the change took out, and puts in something that the change put in,
    as far as the change did either. Names and numbers count; signs where there are none.
    """
    exchanged = _exchanged(document.text[edit.start : edit.end], edit.text)
    return any(
        _shares(exchanged, _exchanged("\n".join(change.before), "\n".join(change.after)))
        for change in changes
    )


def _exchanged(old: str, new: str) -> tuple[set[str], set[str]]:
    """Returns the words and signs that a text loses, and those that it gains."""
    before, after = (Counter(_WORD_OR_SIGN.findall(text)) for text in (old, new))
    return set(before - after), set(after - before)


def _shares(exchanged: tuple[set[str], set[str]], change: tuple[set[str], set[str]]) -> bool:
    words = tuple({text for text in part if _WORD.match(text)} for part in change)
    counted = words if any(words) else change
    return any(counted) and all(
        not part or bool(part & parts) for part, parts in zip(counted, exchanged, strict=True)
    )


def _is_in_word(edit: Edit, document: Document) -> bool:
    """Says whether an edit changes the word that ends at the cursor, which is being typed."""
    word = _WORD_AT_END.search(document.text[: document.cursor])
    return word is not None and word.start() <= edit.jump <= word.end()
