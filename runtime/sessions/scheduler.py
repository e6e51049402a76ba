"""Who computes when: steps of requests that share an engine."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from edgedec.runtime.sessions.passes import Passes, T, attempt, resume
from edgedec.runtime.sessions.rows import Rows


class BusyClock:
    """The time of one request, which stands still while others compute."""

    def __init__(self) -> None:
        self._waited_s = 0.0

    def now_s(self) -> float:
        """Returns seconds since some moment."""
        return time.perf_counter() - self._waited_s

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The clock stands still inside the block."""
        started_s = time.perf_counter()
        try:
            yield
        finally:
            self._waited_s += time.perf_counter() - started_s


class Scheduler:
    """Computes the passes of steps one at a time, in the order they came.

    A step is computed in the thread that submits it, so a single request costs no change of
    threads. Python's own lock goes back to the thread that released it last, because that one is
    awake; here it goes to whoever waited longest. Its holder may take it again: a handler of
    Ctrl-C, or of progress, may stop another stream or iterate it.
    """

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._waiting: deque[tuple[int, threading.Event]] = deque()
        self._holder: int | None = None  # thread that computes
        self._depth = 0  # times it took the lock again

    @contextmanager
    def exclusive(self, clock: BusyClock | None = None) -> Iterator[None]:
        """No step runs inside the block; ``clock`` stands still until it begins."""
        self._take(clock)
        try:
            yield
        finally:
            self._give()

    def run(self, passes: Passes[T], clock: BusyClock | None = None) -> T:
        """Runs a step and returns its result; other steps may go on after each of its passes.

        What a step does before a pass, and that pass, are not interrupted by other steps.
        """
        outcome: Rows | BaseException | None = None
        try:
            while True:
                self._take(clock)  # without `exclusive`: a step's end is slow through contexts
                try:
                    outcome = attempt(resume(passes, outcome))
                finally:
                    self._give()
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            passes.close()

    def _take(self, clock: BusyClock | None = None) -> None:
        own = threading.get_ident()
        if self._holder == own:
            self._depth += 1
            return
        with self._mutex:
            if self._holder is None:
                self._holder = own
                return
        with nullcontext() if clock is None else clock.stopped():
            self._wait(own)

    def _wait(self, own: int) -> None:
        waiter = own, threading.Event()
        try:
            with self._mutex:
                self._waiting.append(waiter)
                if self._holder is None:  # given back meanwhile
                    self._give()
            waiter[1].wait()
        except BaseException:
            self._leave(waiter)
            raise

    def _give(self) -> None:
        if self._depth:
            self._depth -= 1
            return
        with self._mutex:
            if self._waiting:
                self._holder, turn = self._waiting.popleft()
                turn.set()
            else:
                self._holder = None

    def _leave(self, waiter: tuple[int, threading.Event]) -> None:
        """Takes a waiter that was interrupted out of the queue, or passes its turn on."""
        with self._mutex:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                return
        self._give()
