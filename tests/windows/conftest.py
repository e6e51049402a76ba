"""Running Python and `edgedec` on Windows' Python under Wine and on this machine alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
WINDOWS_PYTHON = ROOT / "tools/windows/python"
MAIN = "from edgedec.apps.cli import main; main()"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Wine is slow and needs Debian packages, so `make test` leaves it out."""
    if "windows" in config.option.markexpr:
        return
    for item in items:
        if item.get_closest_marker("windows"):
            item.add_marker(pytest.mark.skip(reason="Windows under Wine: make test-windows"))


@dataclass(frozen=True)
class Outcome:
    """What a program left behind."""

    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.exit_code == 0, self.err
        return json.loads(self.out)


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
