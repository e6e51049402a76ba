"""Notes which tests reach which line, and the processor time of each."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Sequence
from pathlib import Path

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
        self._path.write_text(json.dumps(document), encoding="utf-8")


def processor_s() -> float:
    """Returns the processor time of this process and of the children that ended."""
    return sum(os.times()[:4])
