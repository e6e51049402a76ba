"""A window while a model rewrites it, line by line."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgedec.autocomplete.edits.hunks import NOTHING, Hunk, first_hunk
from edgedec.autocomplete.edits.marks import MarkReader
from edgedec.autocomplete.edits.window import EditWindow

_WORD = re.compile(r"\w+")
_MAX_CUT, _MAX_UNALIKE = 2, 5
"""Lines that an answer may leave out at the end, and that it may replace by quite other ones."""


@dataclass(frozen=True)
class _Line:
    """A line that the model wrote. log_prob: of its tokens, the line feed's included."""

    text: str
    log_prob: float


class Rewriting:
    """Reads an answer until a change in it is known."""

    def __init__(self, window: EditWindow, marks: Mapping[str, int | None] | None = None) -> None:
        """Begins.

        marks: texts that are none of the window's, with the lines at which they point; see
            `EditPrompt`.
        """
        self._window = window
        self._marks = MarkReader(marks or {})
        self._needs_mark = any(line is not None for line in (marks or {}).values())
        self._start: int | None = None  # line of the mark with which the answer begins
        self._end: int | None = None  # that of the mark behind which nothing was written yet
        self._lines: list[_Line] = []
        self._unfinished, self._log_prob = "", 0.0
        self._past = NOTHING
        self.text = ""

    def read(self, text: str, log_prob: float) -> None:
        """Takes in what comes next."""
        self.text += text
        self._log_prob += log_prob
        for part in self._marks.read(text):
            if isinstance(part, int):
                self._pass_mark(part)
            else:
                self._add(part)

    def finish(self, log_prob: float) -> bool:
        """Nothing more comes; says whether the answer is a whole one.

        log_prob: of the token that ends the answer.
        """
        self._add(self._marks.finish())
        self._log_prob += log_prob
        if self._unfinished:
            self._end_line(self._unfinished)
        if not self._needs_mark:
            return True
        if self._start is None or self._end is None or self._end < self._start:
            return False
        self._lines += [_Line(line, 0.0) for line in self._window.lines[self._end :]]
        return True

    def _pass_mark(self, line: int) -> None:
        if self._start is None:
            self._start = line
            if not self._lines and not self._unfinished:  # what is above stays as it is
                self._lines = [_Line(text, 0.0) for text in self._window.lines[:line]]
        self._end = line

    def _add(self, text: str) -> None:
        if text:
            self._end = None
        self._unfinished += text
        while "\n" in self._unfinished:
            line, _, self._unfinished = self._unfinished.partition("\n")
            self._end_line(line)

    def hunk(self, is_whole: bool) -> Hunk | None:
        """Returns the first change that was not passed over, as soon as it is known.

        is_whole: the answer is finished.
        """
        texts = [line.text for line in self._lines]
        return first_hunk(self._window.lines, texts, is_whole, self._past)

    def is_other(self, hunk: Hunk) -> bool:
        """Says whether an answer broke off, or goes on with another text than the window."""
        old, new = self._window.lines[hunk.start : hunk.old_end], self.new_lines(hunk)
        is_cut = hunk.old_end == len(self._window.lines) and len(old) - len(new) > _MAX_CUT
        return is_cut or (len(old) > _MAX_UNALIKE and not _are_alike(old, new))

    def pass_over(self, hunk: Hunk) -> None:
        """Looks behind a change from now on."""
        self._past = hunk

    def new_lines(self, hunk: Hunk) -> list[str]:
        """Returns the lines that a change puts in."""
        return [line.text for line in self._lines[hunk.new_start : hunk.new_end]]

    def probability(self, hunk: Hunk) -> float:
        """Returns that of the changed lines, or of what is behind those that are left out."""
        end = hunk.new_end + (hunk.new_end == hunk.new_start)
        lines = self._lines[hunk.new_start : end]
        return math.exp(sum(line.log_prob for line in lines) if lines else self._log_prob)

    def _end_line(self, line: str) -> None:
        self._lines.append(_Line(line, self._log_prob))
        self._log_prob = 0.0


def _are_alike(old: Sequence[str], new: Sequence[str]) -> bool:
    """Says whether most words of lines stand in what they became."""
    before, after = (Counter(_WORD.findall("\n".join(lines))) for lines in (old, new))
    return 2 * (before & after).total() >= before.total()
