"""Running Python and `edgedec` on Windows' Python under Wine and on this machine alike."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.other_machines import MAIN, ROOT, Outcome, skip_unless_asked

WINDOWS_PYTHON = ROOT / "tools/windows/python"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skip_unless_asked(config, items, "windows")


@dataclass(frozen=True)
class Machine:
    """A Python to run programs with."""

    program: str

    def path(self, path: Path) -> str:
        """Returns how the Python names a file: Wine shows this machine's files as drive Z."""
        if self.program == sys.executable:
            return str(path)
        return "Z:" + str(path.absolute()).replace("/", "\\")

    def python(self, *arguments: object, given: str = "", **environment: str) -> Outcome:
        # Wine's server outlives the program and keeps a pipe of standard error open.
        with tempfile.TemporaryFile() as err:
            done = subprocess.run(
                [self.program, *map(str, arguments)],
                env={**os.environ, **environment},
                cwd=ROOT,
                input=given.encode(),
                stdout=subprocess.PIPE,
                stderr=err,
                check=False,
                timeout=600,
            )
            err.seek(0)
            said = err.read().decode(errors="replace")
        return Outcome(done.returncode, done.stdout.decode(), said)

    def edgedec(self, *arguments: object, **options: str) -> Outcome:
        return self.python("-c", MAIN, *arguments, **options)


@pytest.fixture(scope="session")
def here() -> Machine:
    """The Python that runs the tests."""
    return Machine(sys.executable)


@pytest.fixture(scope="session")
def windows() -> Machine:
    """Windows' Python under Wine."""
    return Machine(str(WINDOWS_PYTHON))
