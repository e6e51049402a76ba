"""Simulates a fleet: what spreading costs, whether memory stays flat, whether a page shows.

    python tools/fleet/simulate.py --hosts 200 --tasks 4000

needs the extras `fleet` and `compare`. The hosts are threads that sleep, each as long as its line
of a cost table says. So all processor time is that of spreading, and of Dask. Prints one JSON
object; with ``-o FOLDER`` it also writes a result file for each host and the page of all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import dask
from distributed import LocalCluster, get_worker

from edgedec.apps.compare.columns import ResultFile
from edgedec.apps.compare.comparison import make_comparison
from edgedec.apps.compare.page import write_page
from edgedec.apps.fleet.config import Cluster, Fleet
from edgedec.apps.fleet.crew import gather_crew
from edgedec.apps.fleet.keeper import CrewOptions
from edgedec.apps.fleet.spread import spread
from edgedec.apps.fleet.store import Task, TaskResult, TaskStore
from edgedec.apps.results.result import Quantity, Result, read_result, utc_now, write_result
from edgedec.system.device import Device, read_state

_SECONDS = [0.05, 0.1, 0.2, 0.4]
"""Of a task, from the fastest kind of host to the slowest."""

_QUIET = {
    "distributed.admin.system-monitor.interval": "1h",
    "distributed.admin.tick.interval": "1h",
    "distributed.admin.tick.limit": "1h",
    "distributed.worker.profile.enabled": False,
}
"""Settings of Dask. Without them, what is counted is mostly the monitors of hundreds of workers in
one process. On real hosts a monitor costs time of its own host."""


def seconds_of(host: str) -> float:
    """Returns how long a task takes on a host: a quarter of them are of each kind."""
    return _SECONDS[int(host) % len(_SECONDS)]


def sleep_task(text: str) -> str:
    """Does a task by sleeping, and answers as hosts do."""
    host = str(get_worker().name)
    time.sleep(seconds_of(host))
    return json.dumps({"result": seconds_of(host), "host": host, "state": {}, "device": {}})


def memory_mb() -> float:
    """Returns what this process has in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


async def simulate(n_hosts: int, n_tasks: int, folder: Path) -> dict[str, Any]:
    """Returns what a run took, and writes the answers to ``folder``."""
    seconds: dict[str, list[float]] = {}
    memory: list[float] = []

    def on_answer(task: Task, answer: TaskResult) -> None:
        seconds.setdefault(answer.host, []).append(answer.result)
        memory.append(memory_mb())

    tasks = [Task({"kind": "sleep", "index": index}) for index in range(n_tasks)]
    async with LocalCluster(
        n_workers=n_hosts, threads_per_worker=1, processes=False, dashboard_address=None,
        asynchronous=True, worker_dashboard_address=None, memory_limit=0,
    ) as cluster:  # fmt: skip
        fleet = Fleet(cluster=Cluster(cluster.scheduler_address))
        with TaskStore(folder) as store:
            async with gather_crew(fleet, lambda hello: {}, CrewOptions()) as crew:
                cpu_s = time.process_time()
                texts = [task.text for task in tasks]
                await crew.client.gather(crew.client.map(sleep_task, texts, pure=False))
                dask_s = time.process_time() - cpu_s
                started_s, cpu_s = time.monotonic(), time.process_time()
                left = await spread(crew, tasks, store, on_answer, sleep_task)
                wall_s, used_s = time.monotonic() - started_s, time.process_time() - cpu_s
    ideal_s = n_tasks / sum(1 / seconds_of(str(host)) for host in range(n_hosts))
    return {
        "hosts": n_hosts,
        "tasks": n_tasks,
        "left": len(left),
        "cpu_ms_per_task": 1000 * used_s / n_tasks,
        "of_dask_alone_ms": 1000 * dask_s / n_tasks,
        "seconds": wall_s,
        "ideal_seconds": ideal_s,
        "memory_mb": [round(memory[n_tasks // 4], 1), round(memory[-1], 1)],
        "answers": seconds,
    }


def write_results(seconds: dict[str, list[float]], folder: Path) -> list[Path]:
    """Writes a result file for each host, as `fleet bench` does."""
    state = read_state()
    paths = []
    for label, values in seconds.items():
        device = Device(f"simulated, {values[0]} s", "", "none", "none", {"core": 1}, 1, (), 1,
                        "none", "none", "none")  # fmt: skip
        result = Result(
            kind="passes", created=utc_now(), label=label, device=device, before=state,
            after=state, build={"edgedec": "none", "kernels_sha256": "none"}, threads=1,
            bundle={"name": "none", "quantization": "none", "target": "none", "sha256": "0" * 64},
            workload={"repetitions": 1}, lost_share=None, lost_share_bound=0.05, is_noisy=False,
            quantities=(Quantity("edgedec", "task", "ms", True, tuple(1000 * v for v in values)),),
        )  # fmt: skip
        paths.append(write_result(result, folder / f"{label}.json"))
    return paths


def main() -> None:
    """Runs the simulation that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=4000)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, dask.config.set(_QUIET):
        report = asyncio.run(simulate(options.hosts, options.tasks, Path(folder)))
    answers = report.pop("answers")
    if options.output is not None:
        options.output.mkdir(exist_ok=True)
        paths = write_results(answers, options.output)
        sources = [ResultFile(path, read_result(path)) for path in paths]
        page = write_page(make_comparison(sources, 0, False))
        (options.output / "page.html").write_text(page, encoding="utf-8")
        report["page_bytes"] = len(page)
    json.dump(report, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
