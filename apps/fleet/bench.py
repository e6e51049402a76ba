"""`edgedec fleet bench`: every host measures the same bundle, and gives a result file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgedec.apps.console.terminal import note
from edgedec.apps.fleet.store import Task, TaskResult, TaskStore
from edgedec.apps.results.result import from_document, utc_now, write_result


def bench_task(bundle: str, options: Sequence[str], label: str) -> Task:
    """Returns what a host is asked to measure.

    bundle: what hosts call it. options: of `edgedec bench`.
    """
    fields = {"kind": "bench", "bundle": bundle, "options": list(options), "label": label}
    return Task(fields, label)


def is_measured(task: Task, store: TaskStore, folder: Path) -> bool:
    """Returns whether a host measured earlier; its result file is made again if it is gone."""
    answer = store.find(task)
    if answer is None:
        return False
    note(f"{task.host}: was measured already")
    if not (folder / file_name(str(task.host))).exists():
        write_answer(task, answer, folder)
    return True


def write_answer(task: Task, answer: TaskResult, folder: Path) -> None:
    """Writes the result file of a host.

    Raises:
        ConfigError: The host sent none.
    """
    label = str(task.host)
    # Clocks of boards may be wrong, and `--against-last` asks which result is newer.
    document = {**answer.result, "created": utc_now()}
    result = from_document(document, f"what {label} sent")
    if result.after.is_throttled:
        note(f"{label}: the processor was slowed down for heat at the end")
    note(f"{label}: wrote {write_result(result, folder / file_name(label))}")


def file_name(label: str) -> str:
    """Returns what the result file of a host is called."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in label) + ".json"
