"""What an edit changes, word by word, so that an editor can strike the old and show the new."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from edgedec.autocomplete.edits.lines import lines_with_ends, without_end

_WORD = re.compile(r"\w+|\s+|[^\w\s]")
_MAX_WORDS = 400  # of a line whose words are compared
_MAX_PARTS = 4  # of a line; more are hard to read, so they are shown as one


@dataclass(frozen=True)
class Replacement:
    """Characters [start, end) of a text that become ``text``."""

    start: int
    end: int
    text: str


def replacements(old: str, new: str) -> list[Replacement]:
    """Returns the smallest parts of ``old`` that have to change to make it ``new``, in order.

    They do not touch one another. Words stay whole.
    """
    before, after = lines_with_ends(old), lines_with_ends(new)
    parts, at = [], 0
    for i, i_end, j, j_end in _blocks(before, after):
        start = at + sum(map(len, before[:i]))
        if i_end - i == j_end - j:
            for line, changed in zip(before[i:i_end], after[j:j_end], strict=True):
                parts += _in_line(line, changed, start)
                start += len(line)
        else:
            parts.append(_lines("".join(before[i:i_end]), "".join(after[j:j_end]), start))
    return parts


def _blocks(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
    """Yields the ranges of ``old`` and of ``new`` that differ."""
    for kind, i, i_end, j, j_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            yield i, i_end, j, j_end


def _in_line(old: str, new: str, at: int) -> list[Replacement]:
    """Returns the parts of a line that change; ``at``: where it begins in the text."""
    if old == new:
        return []
    before, after = _WORD.findall(old), _WORD.findall(new)
    whole = [_trimmed(old, new, at)]
    if max(len(before), len(after)) > _MAX_WORDS:
        return whole
    parts = [
        Replacement(
            at + len("".join(before[:i])),
            at + len("".join(before[:i_end])),
            "".join(after[j:j_end]),
        )
        for i, i_end, j, j_end in _blocks(before, after)
    ]
    return parts if len(parts) <= _MAX_PARTS else whole


def _lines(old: str, new: str, at: int) -> Replacement:
    """Returns the replacement of lines by more or by fewer of them: what is left of them if that is
    all that happens, and otherwise whole lines, for parts of several lines are hard to read."""
    part = _trimmed(old, new, at)
    if part.start == part.end or not part.text:
        return part
    end = lines_with_ends(old)[-1][len(without_end(lines_with_ends(old)[-1])) :]
    n_end = len(end) if new.endswith(end) else 0
    return Replacement(at, at + len(old) - n_end, new[: len(new) - n_end])


def _trimmed(old: str, new: str, at: int) -> Replacement:
    """Returns the replacement of ``old``, without the words that both begin or end with."""
    before, after = _WORD.findall(old), _WORD.findall(new)
    n_least = min(len(before), len(after))
    start = end = 0
    while start < n_least and before[start] == after[start]:
        start += 1
    while end < n_least - start and before[-1 - end] == after[-1 - end]:
        end += 1
    n_before, n_after = len(before) - end, len(after) - end
    first = at + len("".join(before[:start]))
    n_old = len("".join(before[start:n_before]))
    return Replacement(first, first + n_old, "".join(after[start:n_after]))
