"""Runs what is to be compared in turn, again and again, so that every part meets the same machine.

One repetition runs every job once, every second repetition in reverse order. A repetition from
which other processes took more than a stated share of CPU time is thrown away as a whole and run
again, a few times at most; that decision never looks at the results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgedec.apps.measuring.disturbance import LOST_SHARE, MeasuringWindow, Watch
from edgedec.apps.measuring.summary import Summary, summarize
from edgedec.models.errors import ConfigError

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Sample:
    """One measurement of one job.

    value: what is measured, such as seconds per pass.
    own_cpu_s: CPU time of the measured process during the whole run, set-up included.
    n_involuntary: times its threads were taken off a CPU to make room for others.
    joules: energy the machine used per unit of work, if it measures that.
    result: what the run came to, where more of it is asked than the value.
    """

    value: float
    own_cpu_s: float
    n_involuntary: int = 0
    joules: float | None = None
    result: Any = None


class Job(Protocol):
    """Something to measure."""

    @property
    def name(self) -> str:
        """What reports call it."""

    def measure(self) -> Sample | None:
        """Returns a measurement, or None if the job cannot be done (any more)."""


@dataclass(frozen=True)
class Bounds:
    """What a result may suffer and still be printed.

    lost_share: CPU time others took, as a share of what the measured threads can use.
    spread: standard deviation of the repetitions, as a share of their mean.
    """

    lost_share: float = LOST_SHARE
    spread: float = 0.10


@dataclass(frozen=True)
class Plan:
    """How to measure.

    n_threads: threads the measured jobs use. provider: of ONNX Runtime, on which edgedec computes.
    device: of OpenVINO, likewise.
    extra_repetitions: how many disturbed repetitions may be run again.
    settle_s: rest before each job, in which idle processes stop spinning.
    """

    repetitions: int = 5
    warmups: int = 1
    n_threads: int = 1
    provider: str | None = None
    device: str | None = None
    extra_repetitions: int = 5
    settle_s: float = 0.0
    bounds: Bounds = Bounds()

    def __post_init__(self) -> None:
        if self.repetitions < 1:
            raise ConfigError(f"repetitions is {self.repetitions}, expected at least 1")


@dataclass(frozen=True)
class Series:
    """The kept measurements of one job, in the order of the repetitions."""

    name: str
    samples: tuple[Sample, ...]

    @property
    def summary(self) -> Summary:
        """Mean, spread and median of the values."""
        return summarize([sample.value for sample in self.samples])

    @property
    def n_involuntary(self) -> int:
        """Times the system took a processor away from the job, in all repetitions."""
        return sum(sample.n_involuntary for sample in self.samples)

    @property
    def joules(self) -> float | None:
        """Mean energy per unit of work, if every repetition has it."""
        known = [sample.joules for sample in self.samples if sample.joules is not None]
        return sum(known) / len(known) if known and len(known) == len(self.samples) else None


@dataclass(frozen=True)
class Measurement:
    """What `measure` returns.

    series: one per job that succeeded every time; a job that gave up is left out.
    n_discarded: repetitions thrown away because others were busy.
    lost_share: of the kept repetitions; None where the system does not tell.
    """

    series: dict[str, Series]
    n_discarded: int
    lost_share: float | None
    bounds: Bounds

    def noisy(self) -> dict[str, str]:
        """Returns the names of results beyond the bounds, each with its reason."""
        limit = self.bounds
        if self.lost_share is not None and self.lost_share > limit.lost_share:
            reason = (
                f"other processes took {self.lost_share:.0%} of the CPU time, the bound is "
                f"{limit.lost_share:.0%}"
            )
            return dict.fromkeys(self.series, reason)
        return {
            name: f"its repetitions spread by {series.summary.spread:.0%}, the bound is "
            f"{limit.spread:.0%}"
            for name, series in self.series.items()
            if series.summary.spread > limit.spread
        }


@dataclass
class _Run:
    jobs: list[Job]
    plan: Plan
    watch: Watch
    sleep: Callable[[float], None]
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    windows: list[MeasuringWindow] = field(default_factory=list)
    n_discarded: int = 0

    def repeat(self, order: Sequence[Job]) -> tuple[dict[str, Sample], MeasuringWindow | None]:
        """Returns what one repetition measured, and what others did meanwhile."""
        samples: dict[str, Sample] = {}
        total: MeasuringWindow | None = None
        for job in order:
            if job not in self.jobs:
                continue
            if self.plan.settle_s:
                self.sleep(self.plan.settle_s)
            self.watch.start()
            sample = job.measure()
            if sample is None:
                self.jobs.remove(job)
                continue
            samples[job.name] = sample
            window = self.watch.stop(self.plan.n_threads, sample.own_cpu_s)
            if window is not None:
                total = window if total is None else total + window
        return samples, total


def measure(
    jobs: Sequence[Job],
    plan: Plan,
    *,
    watch: Watch | None = None,
    sleep: Callable[[float], None] = time.sleep,
    on_progress: Progress | None = None,
) -> Measurement:
    """Returns the measurements of all jobs, interleaved as this module's text says.

    Args:
        on_progress: Called with ("warm-up" or "repetition", done, in all).

    Raises:
        ConfigError: Two jobs share a name.
    """
    names = [job.name for job in jobs]
    if len(set(names)) != len(names):
        raise ConfigError(f"two jobs share a name, expected each name once: {', '.join(names)}")
    report = on_progress or (lambda phase, done, total: None)
    run = _Run(list(jobs), plan, watch or Watch(time.perf_counter), sleep)
    for i in range(plan.warmups):
        report("warm-up", i, plan.warmups)
        run.repeat(list(run.jobs))
    n_kept = 0
    while n_kept < plan.repetitions:
        report("repetition", n_kept, plan.repetitions)
        order = list(run.jobs) if n_kept % 2 == 0 else list(reversed(run.jobs))
        samples, window = run.repeat(order)
        is_disturbed = window is not None and window.lost_share > plan.bounds.lost_share
        if is_disturbed and run.n_discarded < plan.extra_repetitions:
            run.n_discarded += 1
            continue
        n_kept += 1
        for name, sample in samples.items():
            run.samples.setdefault(name, []).append(sample)
        if window is not None:
            run.windows.append(window)
    report("repetition", n_kept, plan.repetitions)
    return Measurement(
        series={
            job.name: Series(job.name, tuple(run.samples[job.name]))
            for job in jobs
            if job in run.jobs
        },
        n_discarded=run.n_discarded,
        lost_share=_lost_share(run.windows),
        bounds=plan.bounds,
    )


def _lost_share(windows: Sequence[MeasuringWindow]) -> float | None:
    if not windows:
        return None
    total = windows[0]
    for window in windows[1:]:
        total = total + window
    return total.lost_share
