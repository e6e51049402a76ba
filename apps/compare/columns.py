"""Whose results stand side by side: one column for each subject, build, bundle and device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgedec.apps.results.result import Quantity, Result
from edgedec.models.errors import ConfigError


@dataclass(frozen=True)
class Given:
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
    given: tuple[Given, ...]
    runs: tuple[dict[str, Quantity], ...]

    @property
    def result(self) -> Result:
        """The first run's."""
        return self.given[0].result

    def quantities(self, name: str) -> list[Quantity]:
        """Returns a quantity as each run measured it."""
        return [run[name] for run in self.runs if name in run]


_Key = tuple[tuple[str, str], ...]


def make_columns(given: Sequence[Given], are_runs_joined: bool = True) -> list[Column]:
    """Returns the columns of results, in the order of the files.

    are_runs_joined: files that agree in all but the time are runs of one column.

    Raises:
        ConfigError: The results measured different things.
    """
    check_same_work(given)
    groups: dict[_Key, list[Given]] = {}
    for one in given:
        for subject in dict.fromkeys(q.subject for q in one.result.quantities):
            facts = {**_facts(one.result), "subject": subject}
            if not are_runs_joined:
                facts["created"] = one.result.created
            groups.setdefault(tuple(facts.items()), []).append(one)
    facts_of = [dict(key) for key in groups]
    varied = [name for name in facts_of[0] if len({one[name] for one in facts_of}) > 1]
    columns = []
    for fact, found in zip(facts_of, groups.values(), strict=True):
        subject = fact["subject"]
        name = ", ".join(fact[key] for key in varied if fact[key]) or subject
        columns.append(
            Column(
                name=name,
                subject=subject,
                given=tuple(found),
                runs=tuple(_by_name(one.result, subject) for one in found),
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


def check_same_work(given: Sequence[Given]) -> None:
    """Raises a ConfigError unless all results measured the same work in the same units."""
    first = given[0]
    for other in given[1:]:
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
    _check_units(given)


def _check_units(given: Sequence[Given]) -> None:
    units: dict[str, tuple[str, bool, Path]] = {}
    for one in given:
        for q in one.result.quantities:
            unit, is_lower_better, path = units.setdefault(
                q.name, (q.unit, q.is_lower_better, one.path)
            )
            if (unit, is_lower_better) != (q.unit, q.is_lower_better):
                raise ConfigError(
                    f"{q.name} is in {unit} in {path} and in {q.unit} in {one.path}: one of the "
                    "files was edited; measure again"
                )
