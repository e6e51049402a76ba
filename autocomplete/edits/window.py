"""The lines of a document that a model is asked to rewrite, and where to look next."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from edgedec.autocomplete.document import Document
from edgedec.autocomplete.edits.changes import Change
from edgedec.autocomplete.edits.lines import joined, lines_of, lines_with_ends, without_end

_LINE_END = re.compile("\r\n?")
_NAME = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True)
class EditWindow:
    """Lines of a document, and what stands around them.

    first: number of the first line, from 0. start: character where it begins.
    lines: without their ends. cursor: character of `text` before which the cursor is; None if it is
        elsewhere. above, below: texts on either side.
    is_to_end: the empty line behind the last line end of the document belongs to it.
    """

    name: str
    first: int
    start: int
    lines: tuple[str, ...]
    cursor: int | None
    above: str
    below: str
    is_to_end: bool = False

    @property
    def text(self) -> str:
        """The lines, each with a line feed."""
        return "".join(f"{line}\n" for line in self.lines)

    @property
    def shown(self) -> str:
        """The lines with a line feed between each two, as editors show them."""
        return "\n".join([*self.lines, *([""] if self.is_to_end else [])])


def window_at(
    document: Document, line: int, n_lines: int, n_around: int, n_above: int
) -> EditWindow:
    """Returns a window of ``n_lines`` lines, and the lines around it.

    n_above: lines of the window above ``line``.
    n_around: how many on either side. A short rest of the document is no reason to begin earlier.
    """
    lines = lines_with_ends(document.text) or [""]
    first = max(0, line - n_above)
    end = first + n_lines
    above, below = lines[max(0, first - n_around) : first], lines[end : end + n_around]
    return _window(document, lines, first, end, joined(above), joined(below))


def window_within(
    document: Document,
    line: int,
    n_tokens: int,
    n_around_tokens: int,
    count: Callable[[str], int],
) -> EditWindow:
    """Returns the lines around a line that fit into a number of tokens.

    They grow on both sides by turns, as those of Zed's editor do in a text without syntax.

    Args:
        n_around_tokens: Of what is above and below.
        count: Returns the tokens of a line.
    """
    rows = rows_of(document.text)
    nearest = max(0, line - n_tokens - n_around_tokens)  # each line costs a token or more
    near = rows[nearest : line + n_tokens + n_around_tokens + 1]
    costs = [max(1, count(row)) for row in near]
    n_first = 3 * n_tokens // 4
    first, last, left = _grown_evenly(costs, line - nearest, n_first)
    first, last, _ = _grown(costs, first, last, left + n_tokens - n_first)
    outer, outer_last, _ = _grown(costs, first, last, n_around_tokens)
    first, last, outer, outer_last = (nearest + i for i in (first, last, outer, outer_last))
    return window_of(document, range(first, last + 1), range(outer, outer_last + 1))


def rows_of(text: str) -> list[str]:
    """Returns the lines that an editor shows: one more behind the last line end."""
    lines = lines_with_ends(text)
    is_ended = not lines or without_end(lines[-1]) != lines[-1]
    return [*map(without_end, lines), *([""] if is_ended else [])]


def window_of(document: Document, rows: range, around: range) -> EditWindow:
    """Returns a window of rows that an editor shows.

    Args:
        around: The rows of the window, and those on either side. Each one ``below`` begins with a
            line feed.
    """
    shown, lines = rows_of(document.text), lines_with_ends(document.text)
    above = joined(shown[around.start : rows.start])
    below = "".join(f"\n{row}" for row in shown[rows.stop : around.stop])
    window = _window(document, lines, rows.start, rows.stop, above, below)
    return replace(window, is_to_end=len(lines) in rows)


def _grown_evenly(costs: Sequence[int], line: int, n_tokens: int) -> tuple[int, int, int]:
    """Returns the first and the last line around ``line``, and the tokens that are left.

    It stops at the first line for which there is no room.
    """
    first = last = line
    left = max(0, n_tokens - costs[line])
    while left and (first > 0 or last < len(costs) - 1):
        if last < len(costs) - 1:
            if costs[last + 1] > left:
                break
            last += 1
            left -= costs[last]
        if left and first > 0:
            if costs[first - 1] > left:
                break
            first -= 1
            left -= costs[first]
    return first, last, left


def _grown(costs: Sequence[int], first: int, last: int, left: int) -> tuple[int, int, int]:
    """Returns more lines on either side, above first, while there is room on one of them."""
    is_grown = True
    while is_grown and left:
        is_grown = False
        if first > 0 and costs[first - 1] <= left:
            first -= 1
            left -= costs[first]
            is_grown = True
        if left and last < len(costs) - 1 and costs[last + 1] <= left:
            last += 1
            left -= costs[last]
            is_grown = True
    return first, last, left


def _window(
    document: Document, lines: Sequence[str], first: int, end: int, above: str, below: str
) -> EditWindow:
    chosen = lines[first:end]
    start = sum(map(len, lines[:first]))
    n_before = document.cursor - start
    is_here = 0 <= n_before <= sum(map(len, chosen))
    before = document.text[start : document.cursor]
    if before.endswith("\r") and document.text[document.cursor :].startswith("\n"):
        before = before[:-1]  # within a line end
    return EditWindow(
        document.name,
        first,
        start,
        tuple(without_end(line) for line in chosen),
        len(_LINE_END.sub("\n", before)) if is_here else None,
        above,
        below,
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
