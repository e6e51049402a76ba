"""Whose results stand side by side: one column for each subject, build, bundle and device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgedec.apps.results.result import Quantity, Result
from edgedec.models.errors import ConfigError


@dataclass(frozen=True)
class ResultFile:
    """A result and the file it came from."""

    path: Path
    result: Result


@dataclass(frozen=True)
class Column:
    """What one subject came to in one run, or in several runs of the same kind.

    runs: quantity by name, of each run.
    """

    name: str
    subject: str
    sources: tuple[ResultFile, ...]
    runs: tuple[dict[str, Quantity], ...]

    @property
    def result(self) -> Result:
        """The first run's."""
        return self.sources[0].result

    def quantities(self, name: str) -> list[Quantity]:
        """Returns a quantity as each run measured it."""
        return [run[name] for run in self.runs if name in run]


_Key = tuple[tuple[str, str], ...]


def make_columns(sources: Sequence[ResultFile], are_runs_joined: bool = True) -> list[Column]:
    """Returns the columns of results, in the order of the files.

    are_runs_joined: files that agree in all but the time are runs of one column.

    Raises:
        ConfigError: The results measured different things.
    """
    check_same_work(sources)
    groups: dict[_Key, list[ResultFile]] = {}
    for source in sources:
        for subject in dict.fromkeys(q.subject for q in source.result.quantities):
            facts = {**_facts(source.result), "subject": subject}
            if not are_runs_joined:
                facts["created"] = source.result.created
            groups.setdefault(tuple(facts.items()), []).append(source)
    facts_of = [dict(key) for key in groups]
    varied = [name for name in facts_of[0] if len({facts[name] for facts in facts_of}) > 1]
    columns = []
    for fact, same_facts in zip(facts_of, groups.values(), strict=True):
        subject = fact["subject"]
        name = ", ".join(fact[key] for key in varied if fact[key]) or subject
        columns.append(
            Column(
                name=name,
                subject=subject,
                sources=tuple(same_facts),
                runs=tuple(_by_name(source.result, subject) for source in same_facts),
            )
        )
    return columns


def _facts(result: Result) -> dict[str, str]:
    """Returns what distinguishes columns, as people read it; files that agree are runs of one."""
    build = result.build
    device = result.device
    return {
        "device": result.label or device.model or device.soc or device.cpu,
        "cpu": device.cpu,
        "threads": f"{result.threads} thread{'s' * (result.threads != 1)}",
        "bundle": f"{result.bundle['name']} {result.bundle['quantization']}",
        "target": result.bundle["target"],
        "bundle_sha256": f"bundle {result.bundle['sha256'][:8]}",
        "edgedec": f"edgedec {build['edgedec']}",
        "kernels": f"kernels {build['kernels_sha256']}",
        "isa": str(build.get("isa") or ""),
    }


def _by_name(result: Result, subject: str) -> dict[str, Quantity]:
    return {q.name: q for q in result.quantities if q.subject == subject}


def check_same_work(sources: Sequence[ResultFile]) -> None:
    """Raises a ConfigError unless all results measured the same work in the same units."""
    first = sources[0]
    for other in sources[1:]:
        if other.result.kind != first.result.kind:
            raise ConfigError(
                f"{first.path} measured {first.result.kind}, {other.path} {other.result.kind}: "
                "compare results of one kind"
            )
        mine, theirs = first.result.workload, other.result.workload
        for key in sorted({*mine, *theirs}):
            if mine.get(key) != theirs.get(key):
                raise ConfigError(
                    f"{key} is {mine.get(key)!r} in {first.path} and {theirs.get(key)!r} in "
                    f"{other.path}: measure both with the same options"
                )
    _check_units(sources)


def _check_units(sources: Sequence[ResultFile]) -> None:
    units: dict[str, tuple[str, bool, Path]] = {}
    for source in sources:
        for q in source.result.quantities:
            unit, is_lower_better, path = units.setdefault(
                q.name, (q.unit, q.is_lower_better, source.path)
            )
            if (unit, is_lower_better) != (q.unit, q.is_lower_better):
                raise ConfigError(
                    f"{q.name} is in {unit} in {path} and in {q.unit} in {source.path}: one of the "
                    "files was edited; measure again"
                )
