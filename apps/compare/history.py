"""The last result of the same kind in a folder, for watching that nothing becomes slower."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgedec.apps.compare.columns import ResultFile
from edgedec.apps.results.result import Result, read_result
from edgedec.models.errors import ConfigError


def last_before(newest: ResultFile, folder: Path) -> ResultFile:
    """Returns the newest earlier result that measured the same work on the same device.

    Raises:
        ConfigError: There is none.
    """
    earlier = [
        other for other in _results(folder, newest) if _is_earlier(other.result, newest.result)
    ]
    if not earlier:
        raise ConfigError(
            f"{folder} has no earlier result of {newest.path.name}'s kind, device, model and "
            "threads: keep one there with `edgedec bench --save`"
        )
    return max(earlier, key=lambda other: other.result.created)


def _results(folder: Path, newest: ResultFile) -> Iterator[ResultFile]:
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}")
    for path in sorted(folder.glob("*.json")):
        if path.resolve() != newest.path.resolve():
            try:
                yield ResultFile(path, read_result(path))
            except ConfigError:
                continue  # of another program, or an older version


def _is_earlier(other: Result, result: Result) -> bool:
    same = (
        other.kind == result.kind,
        other.place == result.place,
        other.bundle["name"] == result.bundle["name"],
        other.bundle["quantization"] == result.bundle["quantization"],
        dict(other.workload) == dict(result.workload),
        other.build.get("isa") == result.build.get("isa"),
    )
    # Times have whole seconds: two short runs can have the same one.
    return all(same) and other.created <= result.created
