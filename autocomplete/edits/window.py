"""The lines of a document that a model is asked to rewrite, and where to look next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from edgedec.autocomplete.document import Document
from edgedec.autocomplete.edits.changes import Change
from edgedec.autocomplete.edits.lines import joined, lines_of, lines_with_ends, without_end

_NAME = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True)
class EditWindow:
    """Lines of a document, and what stands around them.

    first: number of the first line, from 0. start: character where it begins.
    lines: without their ends. cursor: character of the window before which the cursor is; None if
        it is elsewhere. above, below: texts on either side.
    """

    name: str
    first: int
    start: int
    lines: tuple[str, ...]
    cursor: int | None
    above: str
    below: str

    @property
    def text(self) -> str:
        """The lines, each with a line feed."""
        return "".join(f"{line}\n" for line in self.lines)


def window_at(
    document: Document, line: int, n_lines: int, n_around: int, n_above: int
) -> EditWindow:
    """Returns a window of ``n_lines`` lines, and the lines around it.

    n_above: lines of the window above ``line``.
    n_around: how many on either side. A short rest of the document is no reason to begin earlier.
    """
    lines = lines_with_ends(document.text) or [""]
    first = max(0, line - n_above)
    chosen = lines[first : first + n_lines]
    start = sum(map(len, lines[:first]))
    cursor = document.cursor - start
    is_here = 0 <= cursor <= sum(map(len, chosen))
    return EditWindow(
        document.name,
        first,
        start,
        tuple(without_end(line) for line in chosen),
        cursor if is_here else None,
        joined(lines[max(0, first - n_around) : first]),
        joined(lines[first + n_lines : first + n_lines + n_around]),
    )


def line_of(document: Document) -> int:
    """Returns the number of the cursor's line, from 0."""
    return len(lines_with_ends(document.text[: document.cursor] + "\0")) - 1


def likely_lines(document: Document, changes: Sequence[Change], marked: Sequence[int]) -> list[int]:
    """Returns lines where an edit may follow, the nearest to the cursor first.

    They hold a name that the latest change took away, or something is said about them.

    Args:
        marked: Lines with diagnostics.
    """
    names = removed_names(changes[-1]) if changes else frozenset()
    here, lines = line_of(document), lines_of(document.text)
    having = [
        i
        for i, line in enumerate(lines)
        if any(name in line for name in names) and names & names_in(line)
    ]
    return sorted(
        {*having, *(i for i in marked if i < len(lines))}, key=lambda i: (abs(i - here), i)
    )


def removed_names(change: Change) -> frozenset[str]:
    """Returns the names that stand in what was changed and in nothing that it became."""
    before, after = (names_in("\n".join(part)) for part in (change.before, change.after))
    return before - after


def names_in(text: str) -> frozenset[str]:
    """Returns the names that stand in a text."""
    return frozenset(_NAME.findall(text))
