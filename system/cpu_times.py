"""How much CPU time all processes took so far. Linux knows; elsewhere it is unknown."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from edgedec.system.processors import allowed_processors

_STAT = Path("/proc/stat")
_TICK_S = 1 / (os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100)


@dataclass(frozen=True)
class CpuTimes:
    """CPU time spent since boot on the CPUs this process may use.

    busy_s: by any process or the kernel. stolen_s: by other guests of the same host.
    """

    n_cpus: int
    busy_s: float
    stolen_s: float


def read_cpu_times(stat: Path = _STAT, cpus: frozenset[int] | None = None) -> CpuTimes | None:
    """Returns the CPU times so far, or None if the system does not tell.

    cpus: those to count; the ones this process may run on when None.
    """
    try:
        lines = stat.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    if cpus is None:
        cpus = frozenset(allowed_processors())
    n_cpus, busy_s, stolen_s = 0, 0.0, 0.0
    for line in lines:
        name, *fields = line.split()
        if not name.startswith("cpu") or not name[3:].isdecimal() or int(name[3:]) not in cpus:
            continue
        # user nice system idle iowait irq softirq steal; guests' time is part of user's.
        ticks = [int(field) for field in fields[:8]] + [0] * (8 - len(fields[:8]))
        n_cpus += 1
        busy_s += _TICK_S * (sum(ticks[:3]) + ticks[5] + ticks[6])
        stolen_s += _TICK_S * ticks[7]
    return CpuTimes(n_cpus, busy_s, stolen_s) if n_cpus else None
