"""How much CPU time others took while something was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgedec.system.cpu_times import CpuTimes, read_cpu_times


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
