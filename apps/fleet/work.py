"""What `edgedec fleet bench` and `edgedec fleet eval` do, from the fleet's file to results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgedec.apps.console.terminal import note, print_json, write_out
from edgedec.apps.evaluation.job import EvaluationJob
from edgedec.apps.evaluation.report import render
from edgedec.apps.fleet.bench import bench_task, is_measured, write_answer
from edgedec.apps.fleet.bundles import Bundles
from edgedec.apps.fleet.combined import combined_result
from edgedec.apps.fleet.config import read_fleet
from edgedec.apps.fleet.crew import gather_crew
from edgedec.apps.fleet.evaluate import (
    announcer,
    cut_into_tasks,
    missing_tasks,
    render_hosts,
    summarise,
)
from edgedec.apps.fleet.keeper import CrewOptions
from edgedec.apps.fleet.shipped import Shipped, ship_file
from edgedec.apps.fleet.spread import spread
from edgedec.apps.fleet.store import TaskStore
from edgedec.apps.options.common import RequestOptions
from edgedec.apps.results.result import write_result
from edgedec.models.errors import EdgedecError

RESULT = "result.json"


async def bench_hosts(
    file: Path, bundle: Path, folder: Path, options: Sequence[str], crew_options: CrewOptions
) -> None:
    """Measures on every host.

    Raises:
        EdgedecError: A host has no result; the others have theirs.
    """
    fleet, bundles = read_fleet(file), Bundles(bundle)

    def shipping(hello: Mapping[str, Any]) -> dict[str, Shipped]:
        return {bundles.alias: bundles.for_host(hello)}

    with TaskStore(folder) as store:
        tasks = {host.label: bench_task(bundles.alias, options, host.label) for host in fleet.hosts}
        away = [host for host in fleet.hosts if not is_measured(tasks[host.label], store, folder)]
        if fleet.hosts and not away:
            return
        async with gather_crew(replace(fleet, hosts=tuple(away)), shipping, crew_options) as crew:
            bench_tasks = [bench_task(bundles.alias, options, label) for label in crew.addresses]
            left = await spread(
                crew, bench_tasks, store, lambda task, answer: write_answer(task, answer, folder)
            )
            missing = {**{str(task.host): "it was away" for task in left}, **crew.lost}
    if missing:
        label, reason = next(iter(missing.items()))
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise EdgedecError(f"no result of {label}: {reason}{more}")


@dataclass(frozen=True)
class EvalRun:
    """An evaluation to spread. request_options: the options that its requests were made from."""

    job: EvaluationJob
    request_options: RequestOptions
    bundles: Bundles
    folder: Path
    label: str | None
    is_json: bool


async def evaluate_hosts(file: Path, run: EvalRun, crew_options: CrewOptions) -> None:
    """Evaluates on all hosts together, and prints what they found.

    Raises:
        EdgedecError: Problems are left that no host could answer; the others are kept.
    """
    fleet, data = read_fleet(file), ship_file(run.job.data)
    cut = cut_into_tasks(run.job, run.request_options, run.bundles.alias, data.name)

    def shipping(hello: Mapping[str, Any]) -> dict[str, Shipped]:
        return {run.bundles.alias: run.bundles.for_host(hello), data.name: data}

    lost: dict[str, str] = {}
    with TaskStore(run.folder) as store:
        if missing := missing_tasks(cut, store):
            async with gather_crew(fleet, shipping, crew_options) as crew:
                await spread(crew, missing, store, announcer(cut))
                lost = crew.lost
        summary = summarise(run.job, cut, store, run.folder, lost)
    if summary.answers:
        if run.is_json:
            print_json(summary.document)
        else:
            write_out(render(summary.document) + "\n" + render_hosts(summary.document["hosts"]))
        result = combined_result(summary, *run.bundles.any_bundle, run.label)
        note(f"wrote {write_result(result, run.folder / RESULT)}")
    if not summary.document["is_complete"]:
        n_left = len(cut.tasks) - len(summary.answers)
        why = "; ".join(f"{label}: {reason}" for label, reason in lost.items()) or "no host is left"
        raise EdgedecError(f"{n_left} samples are missing ({why}): run the same command again")
