"""How much CPU time others took while something was measured. Linux tells; elsewhere unknown."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Window:
    """A stretch of measuring. ``wanted_s`` and the rest are CPU seconds.

    wanted_s: what the measured threads can use at most: threads times wall time.
    own_s: what they used. others_s: what other processes and the kernel used.
    stolen_s: what the host gave to other guests. spare_s: what the threads leave to others.
    """

    wanted_s: float
    own_s: float
    others_s: float
    stolen_s: float
    spare_s: float

    @property
    def lost_share(self) -> float:
        """Time others took from the measured threads, as a share of what these can use."""
        lost_s = max(0.0, self.others_s + self.stolen_s - self.spare_s)
        return lost_s / self.wanted_s if self.wanted_s > 0 else 0.0

    def __add__(self, other: Window) -> Window:
        return Window(
            self.wanted_s + other.wanted_s,
            self.own_s + other.own_s,
            self.others_s + other.others_s,
            self.stolen_s + other.stolen_s,
            self.spare_s + other.spare_s,
        )


def read_cpu_times(stat: Path = _STAT, cpus: frozenset[int] | None = None) -> CpuTimes | None:
    """Returns the CPU times so far, or None where the system does not tell.

    cpus: those to count; the ones this process may run on when None.
    """
    try:
        lines = stat.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    if cpus is None:
        affinity = getattr(os, "sched_getaffinity", None)
        cpus = frozenset(affinity(0)) if affinity else frozenset()
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


class Watch:
    """Tells what others did between `start` and `stop`."""

    def __init__(
        self, clock: Callable[[], float], read: Callable[[], CpuTimes | None] = read_cpu_times
    ) -> None:
        self._clock = clock
        self._read = read
        self._started_s = 0.0
        self._before: CpuTimes | None = None

    def start(self) -> None:
        """Begins to watch."""
        self._before = self._read()
        self._started_s = self._clock()

    def stop(self, n_threads: int, own_s: float) -> Window | None:
        """Returns the window since `start`, in which ``n_threads`` threads used ``own_s``."""
        wall_s = self._clock() - self._started_s
        before, after = self._before, self._read()
        if before is None or after is None:
            return None
        return Window(
            wanted_s=n_threads * wall_s,
            own_s=own_s,
            others_s=max(0.0, after.busy_s - before.busy_s - own_s),
            stolen_s=max(0.0, after.stolen_s - before.stolen_s),
            spare_s=max(0.0, (after.n_cpus - n_threads) * wall_s),
        )
