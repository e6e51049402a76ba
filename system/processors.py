"""Processors: which there are, which share a core, and where a thread stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CPU = Path("/sys/devices/system/cpu")


def allowed_processors() -> list[int]:
    """Returns the processors this process may run on, hyper-threads counted."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def physical_cores() -> int:
    """Returns the cores this process may run on, counting hyper-threads of a core once."""
    return max(1, len(one_processor_per_core()))


def one_processor_per_core() -> list[int]:
    """Returns the first processor of each core this process may run on."""
    first: dict[str, int] = {}
    for cpu in allowed_processors():
        first.setdefault(_siblings(cpu), cpu)
    return list(first.values())


def processors() -> int:
    """Returns the processors of this machine, hyper-threads counted."""
    return os.cpu_count() or 1


@contextmanager
def held_on(processor: int) -> Iterator[None]:
    """Keeps the calling thread on ``processor``, if the system offers that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, (processor,))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _siblings(cpu: int) -> str:
    try:
        return (_CPU / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)
