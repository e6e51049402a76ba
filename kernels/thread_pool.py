"""Threads of a model's passes: they share the operators' work, and sleep between passes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from ctypes import c_int
from typing import TypeVar

from edgedec.kernels.library import open_library

T = TypeVar("T")


class ThreadPool:
    """Threads for one pass at a time, the calling one among them."""

    def __init__(self, n_threads: int, processors: Sequence[int] = ()) -> None:
        """Starts all but the calling thread; they stay on ``processors``, one for each, if any.

        Raises:
            RuntimeError: They cannot be started.
        """
        self._library = open_library()
        chosen = (c_int * len(processors))(*processors)
        self._handle = self._library.edgedec_pool_open(n_threads, chosen, len(processors))
        if not self._handle:
            raise RuntimeError(f"cannot start {n_threads} threads")
        self._end = weakref.finalize(self, self._library.edgedec_pool_close, self._handle)
        self._lock = threading.Lock()

    def wake(self) -> None:
        """Wakes the threads for a pass that follows at once, while the caller gets that ready."""
        if self._lock.locked():
            return  # they are in a pass
        with self._lock:
            if self._handle:
                self._library.edgedec_pool_wake(self._handle)

    def run(self, call: Callable[[], T], program: int = 0) -> T:
        """Returns what ``call`` returns, whose operators run on these threads, one pass at a time.

        No context manager: a signal's exception on the way out of one would leave the lock taken.
        program: address of the nodes that a compiled program runs.

        Raises:
            RuntimeError: The threads have ended.
        """
        with self._lock:
            if not self._handle:
                raise RuntimeError("the model is closed")
            self._library.edgedec_pass_begin(program, self._handle)
            try:
                return call()
            finally:
                self._library.edgedec_pass_end(self._handle)

    def stop(self) -> None:
        """Ends the pass of a compiled program that is under way, between two nodes."""
        self._library.edgedec_pass_stop(self._handle)

    def close(self) -> None:
        """Ends the threads, after the pass under way; none follows."""
        with self._lock:
            self._end()
            self._handle = 0
