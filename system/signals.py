"""Ctrl-C and requests to end: silent, at any moment, and with time to clean up."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

PATIENCE_S = 2.0
"""How long a second Ctrl-C waits for the first one's clean-up."""

_IMPORTING = "<frozen importlib"
"""Files of Python's own that import others begin with it."""

_LONGEST_IMPORT_S, _RETRY_S = 1.0, 0.005
"""How long a signal waits for an import to end, and how often it looks."""

ENDINGS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
"""Signals that ask a program to end: Ctrl-C, a request, a terminal that was closed."""

if sys.platform == "win32":
    ENDINGS += (signal.SIGBREAK,)
else:
    ENDINGS += (signal.SIGHUP,)


class SignalWatch:
    """Turns the first signal into an exception that unwinds the program.

    While the program starts there is nothing to unwind, and imports that are broken off raise any
    kind of error: it ends at once. While it unwinds, further signals are waited for. An exception
    that a destructor swallowed is raised again.
    """

    def __init__(self) -> None:
        self.is_started = False
        self._number: int | None = None
        self._since_s = 0.0
        self._is_lost = False
        self._waiting: tuple[int, float] | None = None  # a signal, and since when

    @property
    def exit_code(self) -> int | None:
        """What the program ends with, if it was a signal that ended it."""
        return None if self._number is None else 128 + self._number

    def start(self) -> None:
        """Watches for the signals that are not ignored: those of ``nohup`` and ``&`` stay so."""
        for number in ENDINGS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        if sys.platform != "win32":
            signal.signal(signal.SIGALRM, self._on_alarm)
        sys.unraisablehook = self._on_unraisable

    def end(self) -> None:
        """Lets nothing disturb the end of the program."""
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number in ENDINGS:
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.is_started:
            os._exit(128 + number)
        if self._number is not None and not self._is_lost:
            if time.monotonic() - self._since_s > PATIENCE_S:
                os._exit(128 + number)
            return
        if _is_importing(frame) and self._can_wait(number):
            return
        self._number, self._since_s, self._is_lost = number, time.monotonic(), False
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        if self._waiting is not None:
            self._on_signal(self._waiting[0], frame)

    def _on_unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Has a signal come again whose exception was raised where none gets through."""
        is_ours = isinstance(unraisable.exc_value, KeyboardInterrupt | SystemExit)
        if self._number is None or not is_ours:
            sys.__unraisablehook__(unraisable)
            return
        self._is_lost, self._waiting = True, (self._number, time.monotonic())
        _come_again(self._number)

    def _can_wait(self, number: int) -> bool:
        """Has the signal come again soon, unless that went on for too long."""
        number, since_s = self._waiting = self._waiting or (number, time.monotonic())
        if time.monotonic() - since_s > _LONGEST_IMPORT_S:
            return False
        _come_again(number)
        return True


def _come_again(number: int) -> None:
    """Has a signal come soon: on Windows itself, elsewhere an alarm."""
    if sys.platform == "win32":
        timer = threading.Timer(_RETRY_S, signal.raise_signal, [number])
        timer.daemon = True
        timer.start()
    else:
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether an exception might be lost in Python's own importing, and leave a lock locked."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORTING):
            return True
        frame = frame.f_back
    return False


def hear_at_once(hear: Callable[[int], None]) -> None:
    """Calls ``hear`` with the number of every signal, in another thread.

    Python's own handlers wait until a call into a library returns. The operating system's handler
    writes the number down at once, for the thread to read.
    """
    reader, writer = os.pipe()
    if sys.platform != "win32":
        os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_hear, args=(reader, hear), daemon=True).start()


def _hear(reader: int, hear: Callable[[int], None]) -> None:
    while number := os.read(reader, 1):
        if sys.platform == "win32" or number[0] != signal.SIGALRM:
            hear(number[0])
