"""Passes under way, so that another thread can end one that does not end by itself.

A graph is a program and may loop for ever; the thread that runs it hears of no signal meanwhile.
"""

from __future__ import annotations

import time
from typing import Protocol


class Endable(Protocol):
    """A pass that computes right now."""

    def end(self) -> None:
        """Has it end soon; in its own thread it then raises KeyboardInterrupt."""


_started_s: dict[Endable, float] = {}


def begin(run: Endable) -> None:
    """Notes that ``run`` computes from now on."""
    _started_s[run] = time.perf_counter()


def finish(run: Endable) -> None:
    """Notes that ``run`` computes no more."""
    _started_s.pop(run, None)


def end_passes(least_s: float = 0.0) -> int:
    """Ends the passes that have been computing for ``least_s`` or longer; returns how many."""
    latest_s = time.perf_counter() - least_s
    ended = [run for run, started_s in list(_started_s.items()) if started_s <= latest_s]
    for run in ended:
        run.end()
    return len(ended)
