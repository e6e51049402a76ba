"""Bars for long work, on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from edgedec.apps.console.terminal import bytes_text, is_plain, note

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Amount = Callable[[int, int], str]
"""How a phase's progress reads in words."""

_REDRAW_S = 0.05

_LINE_S = 60.0
"""Between two lines about the same work, where there is no terminal."""

_ESTIMATE_S = 1.0
"""How long a phase runs before the time that is left is estimated."""

_LONG_S = 10.0
"""Where there is no terminal, work with this much time left gets a line at the first estimate."""


class RemainingTimes:
    """How long the rest of each phase will take, at its speed so far."""

    def __init__(self) -> None:
        self._starts: dict[str, tuple[float, int]] = {}
        self._estimated: set[str] = set()

    def estimate(self, phase: str, done: int, total: int) -> tuple[float | None, bool]:
        """Returns the seconds left, and whether this is the phase's first estimate.

        They are None in the first second, without a total, and at the end. What was done before
        the first report, such as tokens that a cache held, took no time.
        """
        now_s = time.monotonic()
        start_s, n_before = self._starts.get(phase, (now_s, done))
        if done < n_before:  # the phase began again
            start_s, n_before = now_s, done
            self._estimated.discard(phase)
        self._starts[phase] = start_s, n_before
        took_s, n_done = now_s - start_s, done - n_before
        if took_s < _ESTIMATE_S or n_done <= 0 or done >= total:
            return None, False
        is_first = phase not in self._estimated
        self._estimated.add(phase)
        return took_s / n_done * (total - done), is_first


class ProgressBars:
    """One bar per phase, gone once closed. After a second it says how much time is left.

    Where there is no terminal to draw on there is a plain line each minute, and one after a second
    if ten seconds or more are left; with ``has_lines``, one when a phase begins, too.
    """

    def __init__(self, amount: Amount, has_lines: bool = False) -> None:
        self._amount = amount
        self._has_lines = has_lines
        self._tasks: dict[str, TaskID] = {}
        self._reported: set[str] = set()
        self._estimates = RemainingTimes()
        self._drawn_s = time.monotonic()
        self._progress = None if is_plain() else _make_bars()

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Clears the bars away. Closing twice is fine."""
        if self._progress is not None:
            self._progress.stop()

    def report(self, phase: str, done: int, total: int, detail: str = "") -> None:
        """Shows how much of ``phase`` is done, of how much (0: unknown), and what it came to."""
        counted = self._amount(done, total) if total else ""
        left_s, is_first = self._estimates.estimate(phase, done, total)
        left = "" if left_s is None else f"about {duration_text(left_s)} left"
        amount = ", ".join(filter(None, [counted, detail, left]))
        if self._progress is None:
            is_long = left_s is not None and left_s >= _LONG_S
            self._report_line(phase, amount, is_first and is_long)
            return
        is_new = phase not in self._tasks
        if is_new:
            for earlier in self._tasks.values():
                self._progress.update(earlier, total=1, completed=1)
            self._tasks[phase] = self._progress.add_task(phase, total=None, amount="")
        now_s = time.monotonic()
        if is_new or done >= total or now_s - self._drawn_s > _REDRAW_S:
            self._drawn_s = now_s
            self._progress.update(
                self._tasks[phase], completed=done, total=total or None, amount=amount
            )

    def _report_line(self, phase: str, amount: str, is_first_estimate: bool) -> None:
        now_s, is_new = time.monotonic(), phase not in self._reported
        self._reported.add(phase)
        if is_new and self._has_lines:
            note(f"{phase} ...")
        elif is_first_estimate or now_s - self._drawn_s > _LINE_S:
            note(f"{phase}: {amount}" if amount else f"{phase} ...")
        else:
            return
        self._drawn_s = now_s


def _make_bars() -> Progress:
    # Imported where there is a terminal, for it delays the first token.
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    from edgedec.apps.console.consoles import err

    return Progress(
        SpinnerColumn(finished_text="[green]✓[/]"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
        console=err,
        transient=True,
    )


def duration_text(seconds: float) -> str:
    """Returns a time for a person: ``34 s``, ``12 min``, ``3.5 h``."""
    if seconds < 99.5:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.1f} h"


def bytes_amount(done: int, total: int) -> str:
    """Returns how far an export is: ``12.0 MB of 98.1 MB``."""
    return f"{bytes_text(done)} of {bytes_text(total)}"


def count_amount(done: int, total: int) -> str:
    """Returns how far a load or a prefill is: ``256 of 1024``."""
    return f"{done} of {total}"
