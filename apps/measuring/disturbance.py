"""How much CPU time others took while something was measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edgedec.system.cpu_times import CpuTimes, read_cpu_times

LOST_SHARE = 0.05
"""Above this share of CPU time taken by others, a run is noisy."""


@dataclass(frozen=True)
class MeasuringWindow:
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

    def __add__(self, other: MeasuringWindow) -> MeasuringWindow:
        return MeasuringWindow(
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

    def stop(self, n_threads: int, own_s: float) -> MeasuringWindow | None:
        """Returns the window since `start`, in which ``n_threads`` threads used ``own_s``."""
        wall_s = self._clock() - self._started_s
        before, after = self._before, self._read()
        if before is None or after is None:
            return None
        return MeasuringWindow(
            wanted_s=n_threads * wall_s,
            own_s=own_s,
            others_s=max(0.0, after.busy_s - before.busy_s - own_s),
            stolen_s=max(0.0, after.stolen_s - before.stolen_s),
            spare_s=max(0.0, (after.n_cpus - n_threads) * wall_s),
        )


class RunWatch:
    """Watches others from now on, while this process and programs that it waits for work."""

    def __init__(self, n_threads: int) -> None:
        self._n_threads = n_threads
        self._watch = Watch(time.monotonic)
        self._own_s = _own_cpu_s()
        self._watch.start()

    def noise(self) -> dict[str, Any]:
        """Returns what others took until now, JSON-ready.

        ``lost_share`` is None where the system does not tell.
        """
        window = self._watch.stop(self._n_threads, _own_cpu_s() - self._own_s)
        share = None if window is None else window.lost_share
        return {
            "bound": LOST_SHARE,
            "lost_share": share,
            "is_noisy": share is not None and share > LOST_SHARE,
        }


def noise_text(noise: dict[str, Any]) -> str:
    """Returns what `RunWatch.noise` found, in words."""
    lost = noise["lost_share"]
    others = "unknown" if lost is None else f"{lost:.1%}"
    mark = ": the times are noisy" if noise["is_noisy"] else ""
    return f"CPU time taken by others: {others} (bound {noise['bound']:.0%}){mark}"


def _own_cpu_s() -> float:
    return sum(os.times()[:4])  # user and system, own and of ended children
