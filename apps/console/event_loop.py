"""Event loops that end when a signal asks for it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

from edgedec.apps.console.terminal import note
from edgedec.system.signals import ENDINGS, PATIENCE_S

T = TypeVar("T")


def run_until_signal(main: Coroutine[Any, Any, T], within_s: float | None = None) -> T:
    """Returns the result of ``main``, run in an event loop of its own; a signal cancels it.

    Elsewhere a signal raises an exception wherever the program is. In a loop that may be between
    two steps of a task, which from then on waits for nothing and is never done.

    within_s: the process ends so long after the signal, even if cleaning up takes longer.

    Raises:
        KeyboardInterrupt: SIGINT cancelled it, and it has cleaned up.
        SystemExit: another signal did.
    """
    ending = _Ending(within_s)
    watched = [n for n in ENDINGS if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, ending.on_signal) for number in watched}
    try:
        return asyncio.run(ending.run(main))
    except asyncio.CancelledError:
        if ending.number is None:
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    raise KeyboardInterrupt if ending.number == signal.SIGINT else SystemExit(128 + ending.number)


class _Ending:
    """What the first signal ends. number: of that signal."""

    def __init__(self, within_s: float | None) -> None:
        self._within_s = within_s
        self.number: int | None = None
        self._since_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    async def run(self, main: Coroutine[Any, Any, T]) -> T:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._loop.set_exception_handler(_report)
        if self.number is not None:
            self._cancel()
        return await main

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            if time.monotonic() - self._since_s > PATIENCE_S:
                os._exit(128 + number)
            return
        self.number, self._since_s = number, time.monotonic()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)  # wakes the loop, too

    def _cancel(self) -> None:
        assert self._task is not None
        if self._within_s is not None:
            timer = threading.Timer(self._within_s, _leave, (self.number, self._within_s))
            timer.daemon = True
            timer.start()
        self._task.cancel()


def _leave(number: int, after_s: float) -> None:
    """Ends the process without cleaning up, which a thread that never ends prevents."""
    note(f"a task did not end within {after_s:g} s of the signal; exiting anyway")
    os._exit(128 + number)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Reports what nobody caught, unless it is that something was cancelled."""
    if not isinstance(context.get("exception"), asyncio.CancelledError):
        loop.default_exception_handler(context)
