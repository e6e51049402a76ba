"""Bars for long work, on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from edgedec.apps.console.terminal import bytes_text, is_plain, note

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Amount = Callable[[int, int], str]
"""How a phase's progress reads in words."""

_REDRAW_S = 0.05

_LINE_S = 60.0
"""Between two lines about the same work, where there is no terminal."""


class ProgressBars:
    """One bar per phase, gone once closed.

    Where there is no terminal to draw on there is a plain line each minute; with ``has_lines``, one
    when a phase begins, too.
    """

    def __init__(self, amount: Amount, has_lines: bool = False) -> None:
        self._amount = amount
        self._has_lines = has_lines
        self._tasks: dict[str, TaskID] = {}
        self._phases: set[str] = set()
        self._drawn_s = time.monotonic()
        self._progress = None if is_plain() else _make_bars()

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Clears the bars away. Closing twice is fine."""
        if self._progress is not None:
            self._progress.stop()

    def report(self, phase: str, done: int, total: int, detail: str = "") -> None:
        """Shows how much of ``phase`` is done, of how much (0: unknown), and what it came to."""
        amount = ", ".join(filter(None, [self._amount(done, total) if total else "", detail]))
        if self._progress is None:
            self._report_line(phase, amount)
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

    def _report_line(self, phase: str, amount: str) -> None:
        now_s, is_new = time.monotonic(), phase not in self._phases
        self._phases.add(phase)
        if is_new and self._has_lines:
            note(f"{phase} ...")
        elif now_s - self._drawn_s > _LINE_S:
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
        TimeRemainingColumn,
    )

    from edgedec.apps.console.consoles import err

    return Progress(
        SpinnerColumn(finished_text="[green]✓[/]"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
        TextColumn("<"),
        TimeRemainingColumn(),
        console=err,
        transient=True,
    )


def bytes_amount(done: int, total: int) -> str:
    """Returns how far an export is: ``12.0 MB of 98.1 MB``."""
    return f"{bytes_text(done)} of {bytes_text(total)}"


def count_amount(done: int, total: int) -> str:
    """Returns how far a load or a prefill is: ``256 of 1024``."""
    return f"{done} of {total}"
