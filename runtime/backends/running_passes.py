"""Passes under way, so that another thread can end one that does not end by itself.

A graph is a program and may loop for ever; the thread that runs it hears of no signal meanwhile.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Endable(Protocol):
    """A pass that computes right now."""

    def end(self) -> None:
        """Has it end soon; in its own thread it then raises KeyboardInterrupt."""


_started: dict[Endable, tuple[float, int]] = {}
"""When each began, and in which thread."""


def begin(run: Endable) -> None:
    """Notes that ``run`` computes from now on."""
    _started[run] = time.perf_counter(), threading.get_ident()


def finish(run: Endable) -> None:
    """Notes that ``run`` computes no more."""
    _started.pop(run, None)


def end_passes(least_s: float = 0.0, thread: int | None = None) -> int:
    """Ends the passes that have been computing for ``least_s`` or longer; returns how many.

    thread: identifies the one whose passes are meant; None: those of all.
    """
    latest_s = time.perf_counter() - least_s
    ended = [
        run
        for run, (started_s, running) in list(_started.items())
        if started_s <= latest_s and thread in (None, running)
    ]
    for run in ended:
        run.end()
    return len(ended)
