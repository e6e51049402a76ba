"""Notes which tests reach which line, and the processor time of each."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from places import Job

NAME = "lines.json"


class Reach:
    """Part of a test session that is watched by coverage."""

    def __init__(self, config: pytest.Config, jobs: Sequence[Job], keep: Path) -> None:
        import coverage

        self._path = keep / NAME
        self._coverage = coverage.Coverage(
            data_file=str(keep / ".coverage"), include=sorted({str(file) for file, _, _ in jobs})
        )
        self._coverage.erase()
        self._coverage.start()
        self._seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Notes what a test reaches, and how long it takes."""
        self._coverage.switch_context(item.nodeid)
        started_s = processor_s()
        result = yield
        self._seconds[item.nodeid] = processor_s() - started_s
        self._coverage.switch_context("between tests")
        return result

    def pytest_sessionfinish(self) -> None:
        """Writes what was noted."""
        self._coverage.stop()
        self._coverage.save()
        data = self._coverage.get_data()
        lines = {
            file: {
                line: [test for test in tests if test in self._seconds]
                for line, tests in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        document = {"lines": lines, "seconds": self._seconds}
        if self._path.exists():
            document = _joined(json.loads(self._path.read_text(encoding="utf-8")), document)
        self._path.write_text(json.dumps(document), encoding="utf-8")


def _joined(known: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Returns what two sessions noted; of a test that both ran, what the later one did."""
    lines: dict[str, dict[str, list[str]]] = {}
    for document, ignored in ((known, new["seconds"]), (new, {})):
        for file, tests_of in document["lines"].items():
            for line, tests in tests_of.items():
                kept = (test for test in tests if test not in ignored)
                lines.setdefault(file, {}).setdefault(str(line), []).extend(kept)
    return {"lines": lines, "seconds": {**known["seconds"], **new["seconds"]}}


def processor_s() -> float:
    """Returns the processor time of this process and of the children that ended."""
    return sum(os.times()[:4])
