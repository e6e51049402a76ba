"""Unified diffs, as `diff -u` and `git diff` write them, read as changes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from edgedec.autocomplete.edits.changes import N_AROUND, Change
from edgedec.autocomplete.edits.lines import lines_of
from edgedec.models.errors import ConfigError

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NOWHERE = "/dev/null"


@dataclass
class _Hunk:
    """Lines of a hunk with their marks. line: number of its first new line, from 0."""

    name: str
    line: int
    n_old: int
    n_new: int
    rows: list[tuple[str, str]] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return self.n_old <= 0 and self.n_new <= 0

    def add(self, mark: str, text: str) -> None:
        self.n_old -= mark != "+"
        self.n_new -= mark != "-"
        self.rows.append((mark, text))


def read_diff(text: str) -> list[Change]:
    """Returns the changes of a unified diff in their order. Binary files have none.

    The lines of a `Change` are numbered as they are after the diff.

    Raises:
        ConfigError: It is no unified diff.
    """
    changes = [change for hunk in _hunks(lines_of(text)) for change in _changes(hunk)]
    if not changes and "Binary files" not in text and text.strip():
        raise ConfigError("got a diff without hunks, expected a unified diff: diff -u, or git diff")
    return changes


def _hunks(lines: Sequence[str]) -> Iterator[_Hunk]:
    names = ["", ""]
    hunk: _Hunk | None = None
    for number, line in enumerate(lines, 1):
        if hunk is not None and not hunk.is_whole:
            if not line.startswith((" ", "+", "-", "\\")) and line:
                raise ConfigError(
                    f"line {number} of the diff is {line[:40]!r}, expected one that begins with a "
                    "space, + or -: make the diff again"
                )
            if not line.startswith("\\"):  # what says that the line before has no end
                hunk.add(line[:1] or " ", line[1:])
            if hunk.is_whole:
                yield hunk
        elif line.startswith(("--- ", "+++ ")):
            names[line.startswith("+")] = _name(line[4:])
        elif match := _HUNK.match(line):
            name = names[0] if names[1] == _NOWHERE else names[1]
            n_old, first, n_new = (int(part or 1) for part in match.groups())
            hunk = _Hunk(name, first - (n_new > 0), n_old, n_new)
    if hunk is not None and not hunk.is_whole:
        raise ConfigError("the diff ends within a hunk: make it again")


def _name(text: str) -> str:
    """Returns the path of a line that names a file, without git's a/ and b/, and without a time."""
    path = text.partition("\t")[0].strip().strip('"')
    return path[2:] if path.startswith(("a/", "b/")) else path


def _changes(hunk: _Hunk) -> Iterator[Change]:
    """Yields the changes of a hunk: its runs of changed lines, with lines on either side."""
    line, parts = (
        hunk.line,
        [
            (is_changed, list(rows))
            for is_changed, rows in groupby(hunk.rows, lambda r: r[0] != " ")
        ],
    )
    for i, (is_changed, rows) in enumerate(parts):
        if is_changed:
            before = tuple(text for mark, text in rows if mark == "-")
            after = tuple(text for mark, text in rows if mark == "+")
            above = tuple(text for _, text in parts[i - 1][1][-N_AROUND:]) if i else ()
            below = (
                tuple(text for _, text in parts[i + 1][1][:N_AROUND]) if i + 1 < len(parts) else ()
            )
            yield Change(hunk.name, line, before, after, above, below)
        line += sum(mark != "-" for mark, _ in rows)
