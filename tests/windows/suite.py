"""Runs the project's own tests on Windows' Python; `make test-windows` calls it under Wine.

python suite.py [PYTEST_ARGUMENT...]

The cases are those of `make test-fast`, and those with a real model. left_out.toml names what
Windows or Wine cannot run. A run goes on where the last one stopped: build/windows/suite.json
holds the files that are done with the same wheel. Ends with the counts of all files, by reason
where tests were left out.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import tomllib
from collections import Counter
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "system", "models", "runtime", "export", "targets", "autocomplete", "labs", "apps"
)  # fmt: skip
OTHERS = "not pair and not models and not long and not windows and not arm and not gpu"
STATE = ROOT / "build/windows/suite.json"
MISSING = re.compile(r"^E +ModuleNotFoundError: No module named '([^.']+)", re.MULTILINE)


@dataclass
class Counts:
    """What became of a file's tests."""

    digest: str = ""  # of the wheel and the file
    passed: int = 0
    failed: int = 0
    not_asked_for: int = 0  # slow, or further combinations
    left_out: dict[str, int] = field(default_factory=dict)
    nothing_because: str = ""  # why no test of the file was collected


class LeftOut:
    """Skips what left_out.toml names."""

    def __init__(self) -> None:
        path = Path(__file__).with_name("left_out.toml")
        rows = tomllib.loads(path.read_text(encoding="utf-8"))["left_out"]
        self.files = {name: row["reason"] for row in rows for name in row.get("files", ())}
        self.tests = {name: row["reason"] for row in rows for name in row.get("tests", ())}
        self.packages = {name: row["reason"] for row in rows for name in row.get("packages", ())}

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Says whether nothing of a file is for Windows."""
        return True if in_tests(collection_path) in self.files else None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Skips single tests."""
        for item in items:
            for pattern, reason in self.tests.items():
                if re.search(pattern, item.nodeid):
                    item.add_marker(pytest.mark.skip(reason=reason))

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Skips a file whose package is missing."""
        report = yield
        self.excuse(report, collector)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Skips a test whose package is missing."""
        report = yield
        self.excuse(report, item)
        return report

    def excuse(
        self, report: pytest.CollectReport | pytest.TestReport, node: pytest.Item | pytest.Collector
    ) -> None:
        missing = MISSING.search(report.longreprtext) if report.failed else None
        if missing and (reason := self.packages.get(missing[1])):
            report.outcome = "skipped"
            report.longrepr = (str(node.path), 0, reason)


class Progress:
    """Counts the tests of each file and keeps the counts on disk."""

    def __init__(self, left_out: LeftOut) -> None:
        self.files_left_out = left_out.files
        (record,) = (ROOT / "build/windows/package").glob("*.dist-info/RECORD")
        self.wheel = record.read_bytes()
        kept = json.loads(STATE.read_text(encoding="utf-8")) if STATE.exists() else {}
        self.files = {name: Counts(**row) for name, row in kept.items()}
        self.files = {name: row for name, row in self.files.items() if self.is_current(name, row)}
        self.open = ""
        self.deselected = Counter[str]()

    def digest(self, name: str) -> str:
        return hashlib.sha256(self.wheel + (ROOT / "tests" / name).read_bytes()).hexdigest()

    def is_current(self, name: str, row: Counts) -> bool:
        return (ROOT / "tests" / name).is_file() and row.digest == self.digest(name)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Says whether a file is done."""
        row = self.files.get(in_tests(collection_path))
        return True if row is not None and row.digest and not row.failed else None

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.deselected.update(in_tests(item.path) for item in items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Notes a file that brings no test here."""
        name = report.nodeid.removeprefix("tests/")
        if name.endswith(".py") and not report.passed:
            row = self.files[name] = Counts(self.digest(name))
            row.failed = int(report.failed)
            row.nothing_because = reason_of(report) if report.skipped else ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts a test; the first of another file closes the last file."""
        name = report.nodeid.partition("::")[0].removeprefix("tests/")
        if name != self.open:
            self.close()
            self.open = name
            self.files[name] = Counts(not_asked_for=self.deselected.pop(name, 0))
        row = self.files[name]
        row.failed += report.failed
        row.passed += report.passed and report.when == "call"
        if report.skipped:
            reason = reason_of(report)
            row.left_out[reason] = row.left_out.get(reason, 0) + 1

    def close(self) -> None:
        """Writes the counts down; those of a file that was broken off have no digest."""
        if self.open:
            self.files[self.open].digest = self.digest(self.open)
        rows = {name: asdict(row) for name, row in sorted(self.files.items()) if row.digest}
        STATE.write_text(json.dumps(rows, indent=1), encoding="utf-8")

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self.close()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints how many ran, and how many did not and why."""
        terminalreporter.section("tests on Windows' Python, with those of earlier runs")
        for line in self.lines():
            terminalreporter.write_line(line)

    def lines(self) -> list[str]:
        rows = self.files.values()
        left_out = Counter[str]()
        for row in rows:
            left_out.update(row.left_out)
        n_not_asked_for = sum(row.not_asked_for for row in rows) + self.deselected.total()
        whole = Counter(row.nothing_because for row in rows if row.nothing_because)
        for name, reason in self.files_left_out.items():
            path = ROOT / "tests" / name
            whole[reason] += len(list(path.rglob("test_*.py"))) if path.is_dir() else 1
        return [
            f"{sum(row.passed for row in rows):6} passed, in {len(self.files)} files",
            *(f"{n:6}   in {folder}" for folder, n in self.passed_by_folder().items()),
            f"{sum(row.failed for row in rows):6} failed",
            *(f"{'':8} in {name}" for name, row in self.files.items() if row.failed),
            f"{left_out.total():6} left out:",
            *(f"{n:6}   {reason}" for reason, n in left_out.most_common()),
            f"{whole.total():6} whole files left out:",
            *(f"{n:6}   {reason}" for reason, n in whole.most_common()),
            f"{n_not_asked_for:6} not asked for: slow, or further combinations of parameters",
        ]

    def passed_by_folder(self) -> Counter[str]:
        found = Counter[str]()
        for name, row in self.files.items():
            found[name.partition("/")[0]] += row.passed
        return found


def in_tests(path: Path) -> str:
    """Returns a path relative to tests/, with slashes; the whole path if it is not there."""
    tests = ROOT / "tests"
    return path.relative_to(tests).as_posix() if path.is_relative_to(tests) else path.as_posix()


def reason_of(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Returns why a report says skipped."""
    assert isinstance(report.longrepr, tuple)
    return str(report.longrepr[2]).removeprefix("Skipped: ")


def main() -> int:
    """Runs pytest as the command line asks; returns its exit code."""
    # Wine 8 has no CopyFile2; without it shutil copies as elsewhere.
    vars(getattr(shutil, "_winapi", shutil)).pop("CopyFile2", None)
    marks = f"{OTHERS} and not slow and not combination"
    given = sys.argv[1:] or [str(ROOT / "tests" / folder) for folder in FOLDERS]
    options = ["-q", "-m", marks, "-r", "fE", "--tb=short", "-p", "no:cacheprovider"]
    options += ["--continue-on-collection-errors", f"--rootdir={ROOT}"]
    left_out = LeftOut()
    code = pytest.main([*options, *given], plugins=[left_out, Progress(left_out)])
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else int(code)


if __name__ == "__main__":
    sys.exit(main())
