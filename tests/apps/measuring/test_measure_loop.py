"""Interleaving, repetition and refusal, with a clock and a machine made up for the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat

import pytest

from edgedec.apps.measuring.disturbance import Watch
from edgedec.apps.measuring.loop import Bounds, Plan, Sample, measure
from edgedec.models.errors import ConfigError
from edgedec.system.cpu_times import CpuTimes


class Machine:
    """Two CPUs whose clock only moves when a job says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.busy_s = 0.0
        self.stolen_s = 0.0
        self.log: list[str] = []

    def watch(self) -> Watch:
        return Watch(lambda: self.now_s, lambda: CpuTimes(2, self.busy_s, self.stolen_s))

    def run(self, wall_s: float, own_s: float, others_s: float = 0.0) -> None:
        self.now_s += wall_s
        self.busy_s += own_s + others_s


class FakeJob:
    """Takes the given seconds, on both CPUs; others take ``others_s`` meanwhile."""

    def __init__(
        self,
        machine: Machine,
        name: str,
        seconds: Iterator[float | None],
        others_s: Callable[[int], float] = lambda i: 0.0,
    ) -> None:
        self.name = name
        self._machine = machine
        self._seconds = seconds
        self._others_s = others_s
        self.n_runs = 0

    def measure(self) -> Sample | None:
        seconds = next(self._seconds)
        self._machine.log.append(self.name)
        self.n_runs += 1
        if seconds is None:
            return None
        self._machine.run(seconds, 2 * seconds, self._others_s(self.n_runs))
        return Sample(seconds, 2 * seconds)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_jobs_take_turns_and_every_second_round_runs_backwards(machine: Machine) -> None:
    jobs = [FakeJob(machine, name, repeat(1.0)) for name in "abc"]
    measure(jobs, Plan(repetitions=3, n_threads=2), watch=machine.watch())
    assert "".join(machine.log) == "abc" + "abc" + "cba" + "abc"


def test_the_warm_up_is_not_counted(machine: Machine) -> None:
    job = FakeJob(machine, "a", chain([100.0], repeat(1.0)))
    result = measure([job], Plan(repetitions=2, n_threads=2), watch=machine.watch())
    assert [sample.value for sample in result.series["a"].samples] == [1.0, 1.0]


def test_each_job_is_preceded_by_a_rest(machine: Machine) -> None:
    rests: list[float] = []
    jobs = [FakeJob(machine, name, repeat(1.0)) for name in "ab"]
    plan = Plan(repetitions=1, n_threads=2, settle_s=0.5)
    measure(jobs, plan, watch=machine.watch(), sleep=rests.append)
    assert rests == [0.5] * 4


def test_a_quiet_run_is_not_noisy(machine: Machine) -> None:
    job = FakeJob(machine, "a", repeat(1.0))
    result = measure([job], Plan(n_threads=2), watch=machine.watch())
    assert result.lost_share == 0
    assert not result.noisy()


def test_a_disturbed_repetition_is_thrown_away_whole_and_repeated(machine: Machine) -> None:
    first = FakeJob(machine, "a", repeat(1.0))
    second = FakeJob(machine, "b", repeat(1.0), lambda i: 1.0 if i == 3 else 0.0)
    result = measure([first, second], Plan(repetitions=3, n_threads=2), watch=machine.watch())
    assert result.n_discarded == 1
    assert first.n_runs == second.n_runs == 1 + 3 + 1
    assert len(result.series["a"].samples) == 3
    assert not result.noisy()


def test_a_run_that_stays_disturbed_ends_and_says_so(machine: Machine) -> None:
    job = FakeJob(machine, "a", repeat(1.0), lambda i: 0.5)
    plan = Plan(repetitions=2, n_threads=2, extra_repetitions=3)
    result = measure([job], plan, watch=machine.watch())
    assert job.n_runs == 1 + 2 + 3
    assert result.lost_share == pytest.approx(0.25)
    assert result.noisy() == {"a": "other processes took 25% of the CPU time, the bound is 5%"}


def test_others_may_use_the_cpus_that_are_left_over(machine: Machine) -> None:
    job = FakeJob(machine, "a", repeat(1.0))
    job.measure = lambda: machine.run(1.0, 1.0, 1.0) or Sample(1.0, 1.0)  # type: ignore[method-assign]
    result = measure([job], Plan(n_threads=1), watch=machine.watch())
    assert result.lost_share == 0


def test_time_stolen_by_the_host_counts(machine: Machine) -> None:
    def run() -> Sample:
        machine.run(1.0, 1.8)
        machine.stolen_s += 0.2
        return Sample(1.0, 1.8)

    job = FakeJob(machine, "a", repeat(1.0))
    job.measure = run  # type: ignore[method-assign]
    result = measure([job], Plan(n_threads=2, extra_repetitions=0), watch=machine.watch())
    assert result.lost_share == pytest.approx(0.1)
    assert "10%" in result.noisy()["a"]


def test_repetitions_that_spread_are_noisy(machine: Machine) -> None:
    steady = FakeJob(machine, "steady", repeat(1.0))
    jumpy = FakeJob(machine, "jumpy", chain([1.0], iter([1.0, 2.0, 1.0])))
    plan = Plan(repetitions=3, n_threads=2, bounds=Bounds(spread=0.3))
    result = measure([steady, jumpy], plan, watch=machine.watch())
    assert list(result.noisy()) == ["jumpy"]
    assert "spread by 43%, the bound is 30%" in result.noisy()["jumpy"]


def test_a_job_that_gives_up_is_left_out_and_the_others_go_on(machine: Machine) -> None:
    whole = FakeJob(machine, "whole", repeat(1.0))
    broken = FakeJob(machine, "broken", chain([1.0, 1.0], repeat(None)))
    result = measure([broken, whole], Plan(repetitions=3, n_threads=2), watch=machine.watch())
    assert list(result.series) == ["whole"]
    assert len(result.series["whole"].samples) == 3
    assert broken.n_runs == 3


def test_without_cpu_times_only_the_spread_is_judged(machine: Machine) -> None:
    job = FakeJob(machine, "a", repeat(1.0))
    watch = Watch(lambda: machine.now_s, lambda: None)
    result = measure([job], Plan(n_threads=2), watch=watch)
    assert result.lost_share is None
    assert not result.noisy()


def test_progress_reaches_the_end(machine: Machine) -> None:
    seen: list[tuple[str, int, int]] = []
    job = FakeJob(machine, "a", repeat(1.0))
    plan = Plan(repetitions=2, n_threads=2)
    measure([job], plan, watch=machine.watch(), on_progress=lambda *at: seen.append(at))
    assert seen == [("warm-up", 0, 1), ("repetition", 0, 2), ("repetition", 1, 2),
                    ("repetition", 2, 2)]  # fmt: skip


def test_mistakes_are_named(machine: Machine) -> None:
    with pytest.raises(ConfigError, match="repetitions is 0"):
        Plan(repetitions=0)
    twins = [FakeJob(machine, "a", repeat(1.0)) for _ in range(2)]
    with pytest.raises(ConfigError, match="share a name"):
        measure(twins, Plan(), watch=machine.watch())


def test_energy_is_known_only_if_every_repetition_knows_it(machine: Machine) -> None:
    def job(joules: Iterator[float | None]) -> FakeJob:
        made = FakeJob(machine, "a", repeat(1.0))
        made.measure = lambda: Sample(1.0, 0.0, joules=next(joules))  # type: ignore[method-assign]
        return made

    plan = Plan(repetitions=2, warmups=0)
    known = measure([job(iter([1.0, 3.0]))], plan, watch=machine.watch())
    assert known.series["a"].joules == 2.0
    unknown = measure([job(iter([1.0, None]))], plan, watch=machine.watch())
    assert unknown.series["a"].joules is None
