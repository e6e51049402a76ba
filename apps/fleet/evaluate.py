"""`edgedec fleet eval`: hosts share the problems; what they find is one evaluation."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgedec.apps.console.tables import table
from edgedec.apps.console.terminal import note
from edgedec.apps.evaluation.job import EvaluationJob, TaskOptions, make_settings, make_work
from edgedec.apps.evaluation.report import make_document
from edgedec.apps.evaluation.samples import Sample, SampleFile, Samples, Setting
from edgedec.apps.evaluation.scores import number_text, tokens_per_s
from edgedec.apps.evaluation.walk import sample_line
from edgedec.apps.fleet.store import Task, TaskResult, TaskStore
from edgedec.apps.measuring.facts import build_facts, device_facts
from edgedec.apps.options.common import LoadOptions, RequestOptions
from edgedec.models.errors import ConfigError, EdgedecError
from edgedec.system.files import move_over

SAMPLES = "samples.jsonl"


@dataclass(frozen=True)
class Evaluated:
    """What hosts found: the document of `apps.evaluation.report`, and what each answer was of."""

    document: dict[str, Any]
    answers: Sequence[TaskResult]


@dataclass(frozen=True)
class Spread:
    """An evaluation cut into tasks, one for each problem under each setting."""

    settings: Sequence[Setting]
    names: Sequence[str]
    tasks: Sequence[Task]


def cut_into_tasks(job: EvaluationJob, request: RequestOptions, bundle: str, data: str) -> Spread:
    """Returns the tasks of an evaluation.

    bundle, data: what hosts call them.

    Raises:
        ConfigError: The data is broken, or an option needs files that hosts do not have.
    """
    with ExitStack() as stack:
        work, how = make_work(job, stack)
        names = list(work.names)
        settings = [_for_any_host(setting) for setting in make_settings(job, how)]
    what = dataclasses.replace(job.what, data=None)
    common = {
        "kind": "eval",
        "bundle": bundle,
        "data": data,
        "data_name": job.data.name,
        "what": _plain(what),
        "loading": _plain(job.loading),
        "request": _plain(request),
    }
    tasks = [
        Task({**common, "setting": setting.label, "index": index, "name": name})
        for index, name in enumerate(names)
        for setting in settings
    ]
    return Spread(settings, names, tasks)


def _for_any_host(setting: Setting) -> Setting:
    """Returns a setting whose samples may be of any host, each with threads of its own."""
    return dataclasses.replace(setting, facts={**setting.facts, "threads": "each host's own"})


def _plain(options: TaskOptions | LoadOptions | RequestOptions) -> dict[str, Any]:
    fields = dataclasses.asdict(options)
    for name, value in fields.items():
        if isinstance(value, Path):
            raise ConfigError(
                f"--{name.replace('_', '-')} names a file of this machine, which hosts do not "
                "have: put it into the bundle"
            )
    return fields


def missing_tasks(cut: Spread, store: TaskStore) -> list[Task]:
    """Returns the tasks that the store has no answer for; prints how many answers it has."""
    missing = [task for task in cut.tasks if store.find(task) is None]
    if len(missing) < len(cut.tasks):
        note(f"{len(cut.tasks) - len(missing)} of {len(cut.tasks)} samples are there already")
    return missing


def announcer(cut: Spread) -> Callable[[Task, TaskResult], None]:
    """Returns what says how each sample came out, for a person who waits.

    Raises:
        EdgedecError: A host sent what is no sample.
    """
    settings, n_done = {setting.label: setting for setting in cut.settings}, 0

    def announce(task: Task, answer: TaskResult) -> None:
        nonlocal n_done
        n_done += 1
        setting = settings[task.fields["setting"]]
        sample = _sample(task, answer, setting)
        note(f"[{n_done}] {answer.host}: {sample.name}: {sample_line(setting, sample)}")

    return announce


def summarise(
    job: EvaluationJob, cut: Spread, store: TaskStore, folder: Path, lost: Mapping[str, str]
) -> Evaluated:
    """Returns what all hosts found so far, and writes their samples to ``folder``.

    Raises:
        EdgedecError: A sample is not one, or cannot be written.
    """
    settings = {setting.label: setting for setting in cut.settings}
    pairs = [(task, answer) for task in cut.tasks if (answer := store.find(task)) is not None]
    answers = [answer for _, answer in pairs]
    samples = [_sample(task, answer, settings[task.fields["setting"]]) for task, answer in pairs]
    held = Samples(
        {setting.fingerprint: setting for setting in cut.settings},
        {(sample.fingerprint, sample.name): sample for sample in samples},
    )
    _write_samples(folder / SAMPLES, cut.settings, samples)
    facts = {
        "is_complete": len(pairs) == len(cut.tasks),
        "device": device_facts(),
        "build": build_facts(),
        "hosts": host_rows(samples, answers, lost),
    }
    document = make_document(cut.settings, held, cut.names, facts, job.what.frontier)
    return Evaluated(document, answers)


def _sample(task: Task, answer: TaskResult, setting: Setting) -> Sample:
    """Returns a host's sample, under the fingerprint that all hosts have in common."""
    try:
        sample = Sample.from_dict({**answer.result, "fingerprint": setting.fingerprint})
    except (TypeError, ValueError) as error:
        raise EdgedecError(f"{answer.host} sent what is no sample ({error})") from None
    if sample.name != task.fields["name"]:
        raise EdgedecError(f"{answer.host} sent {sample.name!r} for {task.fields['name']!r}")
    return sample


def _write_samples(path: Path, settings: Sequence[Setting], samples: Sequence[Sample]) -> None:
    """Writes the samples as `edgedec eval -o` would, in the order of problems."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        file = SampleFile(Path(folder) / path.name)
        file.begin(settings)
        for sample in samples:
            file.add(sample)
        file.close()
        move_over(Path(folder) / path.name, path)


def host_rows(
    samples: Sequence[Sample], answers: Sequence[TaskResult], lost: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Returns what each host did, JSON-ready."""
    rows = []
    for label in dict.fromkeys([*(answer.host for answer in answers), *lost]):
        of_host = [sample for sample, answer in zip(samples, answers, strict=True)
               if answer.host == label]  # fmt: skip
        states = [answer.state for answer in answers if answer.host == label]
        rows.append(
            {
                "label": label,
                "n_samples": len(of_host),
                "seconds": sum(sample.seconds for sample in of_host),
                "tokens_per_s": tokens_per_s(of_host),
                "max_celsius": max((s["max_celsius"] or 0.0 for s in states), default=0.0) or None,
                "was_throttled": any(state["is_throttled"] for state in states),
                "lost": lost.get(label),
            }
        )
    return rows


def render_hosts(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a table of what each host did."""
    header = ["host", "samples", "s/sample", "t/s", "hottest", "remarks"]
    return table(header, [_host_cells(row) for row in rows])


def _host_cells(row: Mapping[str, Any]) -> list[str]:
    n, celsius = row["n_samples"], row["max_celsius"]
    remarks = ["slowed down for heat" if row["was_throttled"] else "", row["lost"] or ""]
    return [
        row["label"],
        str(n),
        f"{row['seconds'] / n:.2f}" if n else "",
        number_text(row["tokens_per_s"], ".1f"),
        "" if celsius is None else f"{celsius:.0f} °C",
        "; ".join(filter(None, remarks)),
    ]
