"""Processors: which there are, which share a core, which are fast, and where a thread stays."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edgedec.system import _linux

if sys.platform == "win32":
    from edgedec.system import _windows
elif sys.platform == "darwin":
    from edgedec.system import _macos

_FEW = 2
"""Fast cores that are too few to compute alone, so that the next kind of core joins them."""


@dataclass(frozen=True)
class Core:
    """rank: higher for a faster kind of core. processors: its hyper-threads."""

    rank: int
    processors: tuple[int, ...]


def allowed_processors() -> list[int]:
    """Returns the processors this process may run on, hyper-threads counted."""
    if sys.platform == "win32":
        return _windows.allowed_processors()
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def physical_cores() -> int:
    """Returns the cores that computing uses, unless a user asks for more or fewer.

    Hyper-threads of a core count once, and slow cores not at all: a pass waits for the slowest
    thread. Quotas of Linux's control groups bound it, rounded down.
    """
    n_cores = len(one_processor_per_core())
    quota = _linux.cpu_quota() if sys.platform == "linux" else None
    return max(1, n_cores if quota is None else min(n_cores, int(quota)))


def one_processor_per_core() -> list[int]:
    """Returns the first processor of each core that computing uses."""
    return [core.processors[0] for core in fast_cores(_cores(), allowed_processors())]


def fast_cores(cores: Sequence[Core], allowed: Sequence[int]) -> list[Core]:
    """Returns the fastest cores that have an allowed processor, with those processors alone.

    Slower kinds are left out, unless there is but one faster core.
    """
    kept = [Core(c.rank, tuple(p for p in c.processors if p in allowed)) for c in cores]
    usable = [core for core in kept if core.processors]
    chosen: list[Core] = []
    for rank in sorted({core.rank for core in usable}, reverse=True):
        if len(chosen) < _FEW:
            chosen += [core for core in usable if core.rank == rank]
    return sorted(chosen, key=lambda core: core.processors)


def processors() -> int:
    """Returns the processors of this machine, hyper-threads counted."""
    return os.cpu_count() or 1


@contextmanager
def held_on(processor: int) -> Iterator[None]:
    """Keeps the calling thread on ``processor``, if the system offers that."""
    if sys.platform == "win32":
        held = _windows.set_thread_processors([processor])
        try:
            yield
        finally:
            _windows.set_thread_processors(held)
    elif sys.platform == "linux":
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, (processor,))
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)
    else:
        yield


def stay_on(processors: Sequence[int]) -> None:
    """Keeps this thread, and those it starts from now on, on ``processors``.

    Raises:
        NotImplementedError: Only Linux keeps a process on processors.
        OSError: There are no such processors.
    """
    if sys.platform != "linux":
        raise NotImplementedError
    os.sched_setaffinity(0, processors)


def linux_cores(allowed: Sequence[int], root: Path = _linux.ROOT) -> list[Core]:
    """Returns the cores of processors, as Linux lists them. root: where its `/sys` lies."""
    groups = {_linux.siblings(number, root) for number in allowed}
    return [Core(_linux.rank(group[0], root), group) for group in groups]


def _cores() -> list[Core]:
    if sys.platform == "win32":
        cores = [Core(rank, numbers) for rank, numbers in _windows.cores()]
    elif sys.platform == "darwin":
        counts = _macos.core_counts()
        ranks = [-level for level, count in enumerate(counts) for _ in range(count)]
        cores = [Core(rank, (number,)) for number, rank in enumerate(ranks)]
    else:
        cores = linux_cores(allowed_processors())
    return cores or [Core(0, (number,)) for number in allowed_processors()]
