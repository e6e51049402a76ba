"""What the runtime asks the operating system: cores to use, memory used."""

from __future__ import annotations

import os
import sys
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


def _siblings(cpu: int) -> str:
    try:
        return (_CPU / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def peak_rss_mb() -> float:
    """Returns the most memory this process has had resident. Units: 10**6 bytes.

    Linux's ``VmHWM`` is preferred: ``ru_maxrss`` starts at the parent's size after a fork.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    if sys.platform == "win32":
        return 0.0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6
