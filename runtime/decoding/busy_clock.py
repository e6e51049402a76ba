"""The time of one request, without that of others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class BusyClock:
    """The time of one request, which stands still while others compute."""

    def __init__(self) -> None:
        self._waited_s = 0.0
        self.left_s = 0.0  # when a step of the request ended last
        self.is_prompt = True  # it came back for more at once

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
            self.skip(time.perf_counter() - started_s)

    def skip(self, seconds: float) -> None:
        """Leaves out a time that has just passed."""
        self._waited_s += seconds

    def add(self, ms: float) -> None:
        """Counts what was computed for the request while the clock stood still."""
        self._waited_s -= ms / 1000
