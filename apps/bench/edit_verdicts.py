"""Whether a predicted edit is what was done: right, near or wrong."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from enum import StrEnum

import numpy as np

from edgedec.autocomplete.edits import Edit
from edgedec.autocomplete.edits.lines import lines_with_ends

Opcode = tuple[str, int, int, int, int]
_MAX_CELLS = 1 << 24
"""Of two texts' comparison; longer ones count as different."""


class Verdict(StrEnum):
    """What an edit was worth."""

    RIGHT = "right"
    NEAR = "near"
    WRONG = "wrong"


def judge(edit: Edit, now: str, after: str) -> Verdict:
    """Returns what an edit of a document is worth, by what the document became.

    Right: every line that it takes away or puts in leads to ``after``. Near: of the characters
    that it takes away and puts in, those that do outweigh the others by three to one.
    """
    old, new, goal = (lines_with_ends(text) for text in (now, edit.applied(now), after))
    changed = _narrow(old, new, goal)
    if _gain(*changed) == 1:
        return Verdict.RIGHT
    old_text, new_text, goal_text = ("".join(lines) for lines in changed)
    return Verdict.NEAR if _gain(old_text, new_text, goal_text) >= 0.5 else Verdict.WRONG


def _narrow(
    old: Sequence[str], new: Sequence[str], goal: Sequence[str]
) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
    """Returns the lines that an edit changes, what they become by it, and what they became."""
    start, n_least = 0, min(len(old), len(new))
    while start < n_least and old[start] == new[start]:
        start += 1
    end = 0
    while end < n_least - start and old[-1 - end] == new[-1 - end]:
        end += 1
    opcodes = SequenceMatcher(None, old, goal, autojunk=False).get_opcodes()
    first, goal_first = _counterpart(opcodes, start, is_start=True)
    last, goal_last = _counterpart(opcodes, len(old) - end, is_start=False)
    n_after = len(old) - last
    return old[first:last], new[first : len(new) - n_after], goal[goal_first:goal_last]


def _counterpart(opcodes: Sequence[Opcode], at: int, is_start: bool) -> tuple[int, int]:
    """Returns the place between lines that both texts have at ``at``.

    At a change, it is where this change begins, or where it ends.
    """
    touching = [opcode for opcode in opcodes if opcode[1] <= at <= opcode[2]]
    for tag, start, end, goal_start, goal_end in touching:
        if tag != "equal":
            return (start, goal_start) if is_start else (end, goal_end)
    return next(((at, opcode[3] + at - opcode[1]) for opcode in touching), (at, at))


def _gain(old: Sequence[str], new: Sequence[str], goal: Sequence[str]) -> float:
    """Returns how much nearer to ``goal`` the way from ``old`` to ``new`` leads, by its length."""
    length = _distance(old, new)
    return (_distance(old, goal) - _distance(new, goal)) / length if length else 0.0


def _distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Returns how many elements have to be taken away and put in to make ``b`` of ``a``."""
    if len(a) * len(b) > _MAX_CELLS:
        return len(a) + len(b)
    numbers = {element: i for i, element in enumerate(dict.fromkeys([*a, *b]))}
    row_of = np.array([numbers[element] for element in b], dtype=np.int64)
    common = np.zeros(len(b) + 1, dtype=np.int64)  # longest common subsequence, by length of b
    for element in a:
        longer = common[:-1] + (row_of == numbers[element])
        common[1:] = np.maximum.accumulate(np.maximum(longer, common[1:]))
    return len(a) + len(b) - 2 * int(common[-1])
