"""Where a rewritten window differs from what it was: told while it is still being written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_AGREEING = 2
"""Lines that are as they were, after which a change is over."""


@dataclass(frozen=True)
class Hunk:
    """Old lines [start, old_end) that become new lines [new_start, new_end)."""

    start: int
    old_end: int
    new_start: int
    new_end: int


NOTHING = Hunk(0, 0, 0, 0)


def first_hunk(
    old: Sequence[str], new: Sequence[str], is_whole: bool, past: Hunk = NOTHING
) -> Hunk | None:
    """Returns the first change; None if there is none, or if it is not known yet where it ends.

    Args:
        new: Lines as far as they are written, without one that is unfinished.
        is_whole: Nothing will follow ``new``.
        past: The change behind which to look.
    """
    hunk = _first(old[past.old_end :], new[past.new_end :], is_whole)
    if hunk is None:
        return None
    n_old, n_new = past.old_end, past.new_end
    return Hunk(
        n_old + hunk.start, n_old + hunk.old_end, n_new + hunk.new_start, n_new + hunk.new_end
    )


def _first(old: Sequence[str], new: Sequence[str], is_whole: bool) -> Hunk | None:
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    if is_whole:
        return _to_end(old, new, start)
    for n_more in range(len(old) + len(new) - 2 * start):  # lines of the change, on both sides
        for new_end in range(start, min(start + n_more, len(new)) + 1):
            old_end = start + n_more - (new_end - start)
            if old_end <= len(old) and _agree(old[old_end:], new[new_end:]):
                return Hunk(start, old_end, start, new_end) if n_more else None
    return None


def _to_end(old: Sequence[str], new: Sequence[str], start: int) -> Hunk | None:
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    hunk = Hunk(start, len(old) - end, start, len(new) - end)
    return hunk if hunk.old_end > start or hunk.new_end > start else None


def _agree(old: Sequence[str], new: Sequence[str]) -> bool:
    """Says whether lines go on as they were for long enough to believe it."""
    if len(new) < _AGREEING or list(old[:_AGREEING]) != list(new[:_AGREEING]):
        return False
    return any(line.strip() for line in new[:_AGREEING])
