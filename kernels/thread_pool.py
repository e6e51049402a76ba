"""Threads of a model's passes: they share the operators' work, and sleep between passes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from ctypes import c_int
from typing import TypeVar

from edgedec.kernels.library import open_library
from edgedec.system.processes import after_fork_in_child

T = TypeVar("T")


class ThreadPool:
    """Threads for one pass at a time, the calling one among them.

    A forked process has none of its parent's threads, and starts its own for its first pass.
    """

    def __init__(self, n_threads: int, processors: Sequence[int] = ()) -> None:
        """Starts all but the calling thread; they stay on ``processors``, one for each, if any.

        Raises:
            RuntimeError: They cannot be started.
        """
        self._library = open_library()
        self._n_threads = n_threads
        self._processors = tuple(processors)
        self._start()
        _pools.add(self)

    def _start(self) -> None:
        chosen = (c_int * len(self._processors))(*self._processors)
        n = len(self._processors)
        self._handle = self._library.edgedec_pool_open(self._n_threads, chosen, n)
        if not self._handle:
            raise RuntimeError(f"cannot start {self._n_threads} threads")
        self._end = weakref.finalize(self, self._library.edgedec_pool_close, self._handle)
        self._lock = threading.Lock()
        self._is_inherited = False

    def inherit(self) -> None:
        """Forgets the threads, which another process has: their end cannot be waited for."""
        self._end.detach()
        self._lock = threading.Lock()
        self._is_inherited = True

    def wake(self) -> None:
        """Wakes the threads for a pass that follows at once, while the caller gets that ready."""
        if self._lock.locked() or self._is_inherited:
            return  # they are in a pass, or will be started for it
        with self._lock:
            if self._handle:
                self._library.edgedec_pool_wake(self._handle)

    def run(self, call: Callable[..., T], *arguments: object, program: int = 0) -> T:
        """Returns what ``call`` returns, whose operators run on these threads, one pass at a time.

        No context manager: a signal's exception on the way out of one would leave the lock taken.
        program: address of the nodes that a compiled program runs.

        Raises:
            RuntimeError: The threads have ended.
        """
        if self._is_inherited and self._handle:
            self._start()
        with self._lock:
            if not self._handle:
                raise RuntimeError("the model is closed")
            self._library.edgedec_pass_begin(program, self._handle)
            try:
                return call(*arguments)
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


_pools: weakref.WeakSet[ThreadPool] = weakref.WeakSet()


def _inherit_all() -> None:
    for pool in _pools:
        pool.inherit()


after_fork_in_child(_inherit_all)
