"""What somebody changed of late, as a model reads it: changed lines, before and after."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from edgedec.autocomplete.document import Document
from edgedec.autocomplete.edits.lines import lines_of

_MAX_CHANGES = 8
N_AROUND = 3  # lines that are kept on either side of a change
_NEAR = 2  # lines between two edits that count as one change


@dataclass(frozen=True)
class Change:
    """Lines that became others.

    line: number of the first, from 0. before, after: the lines, without their ends.
    above, below: up to three lines on either side.
    """

    name: str
    line: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()

    @property
    def n_characters(self) -> int:
        """Characters of its lines, before and after."""
        return sum(map(len, (*self.before, *self.after, *self.above, *self.below)))


@dataclass(frozen=True)
class Span:
    """Lines [start, old_end) that became lines [start, new_end)."""

    start: int
    old_end: int
    new_end: int

    @classmethod
    def between(cls, old: Sequence[str], new: Sequence[str]) -> Span | None:
        """Returns the lines that differ; None if none do."""
        if old == new:
            return None
        n_least, start, end = min(len(old), len(new)), 0, 0
        while start < n_least and old[start] == new[start]:
            start += 1
        while end < n_least - start and old[-1 - end] == new[-1 - end]:
            end += 1
        return cls(start, len(old) - end, len(new) - end)

    def parts(self, old: Sequence[str], new: Sequence[str]) -> list[Span]:
        """Returns its changes that are far from one another, as those of several cursors are."""
        if self.old_end != self.new_end:
            return [self]
        parts: list[Span] = []
        for line in range(self.start, self.old_end):
            if old[line] != new[line]:
                is_near = parts and line <= parts[-1].new_end + _NEAR
                start = parts.pop().start if is_near else line
                parts.append(Span(start, line + 1, line + 1))
        return parts


@dataclass
class _Open:
    """A document, and what it was before the edits that are still told as one."""

    base: list[str]
    lines: list[str]


class EditHistory:
    """The latest changes of all documents. Edits near one another are one change. Of any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed: deque[Change] = deque(maxlen=_MAX_CHANGES)
        self._open: dict[str, _Open] = {}
        self._latest = ""  # name of the document that changed last

    def see(self, document: Document) -> None:
        """Takes in a document as it is now."""
        lines = lines_of(document.text)
        with self._lock:
            self._see(document, lines)

    def _see(self, document: Document, lines: list[str]) -> None:
        known = self._open.get(document.name)
        if known is None:
            self._open[document.name] = _Open(lines, lines)
            return
        edit = Span.between(known.lines, lines)
        if edit is None:
            return
        if self._latest != document.name:
            self._close(self._latest)
            self._latest = document.name
        earlier = Span.between(known.base, known.lines)
        if earlier is not None and not _are_near(earlier, edit):
            self._close(document.name)
        known.lines = lines

    def add(self, change: Change) -> None:
        """Takes in a change that somebody else found, as the latest."""
        with self._lock:
            self._close(self._latest)
            self._closed.append(change)

    def forget(self, name: str) -> None:
        """A document was closed; what was changed in it stays known."""
        with self._lock:
            self._close(name)
            self._open.pop(name, None)

    @property
    def changes(self) -> list[Change]:
        """The changes, the latest last."""
        with self._lock:
            return [*self._closed, *self._changes(self._latest)]

    def _close(self, name: str) -> None:
        if changes := self._changes(name):
            self._closed.extend(changes)
            self._open[name].base = self._open[name].lines

    def _changes(self, name: str) -> list[Change]:
        known = self._open.get(name)
        span = None if known is None else Span.between(known.base, known.lines)
        if known is None or span is None:
            return []
        base, lines = known.base, known.lines
        return [
            Change(
                name,
                part.start,
                tuple(base[part.start : part.old_end]),
                tuple(lines[part.start : part.new_end]),
                tuple(lines[max(0, part.start - N_AROUND) : part.start]),
                tuple(lines[part.new_end : part.new_end + N_AROUND]),
            )
            for part in span.parts(base, lines)
        ]


def _are_near(earlier: Span, edit: Span) -> bool:
    """Says whether an edit touches lines that earlier ones made, or some near them."""
    return edit.start <= earlier.new_end + _NEAR and edit.old_end >= earlier.start - _NEAR
