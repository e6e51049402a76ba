"""Running Python and `edgedec` on emulated processors and on this machine alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ARM_PYTHON = ROOT / "tools/arm/python"
MAIN = "from edgedec.apps.cli import main; main()"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Emulation is slow and needs Debian packages, so `make test` leaves it out."""
    if "arm" in config.option.markexpr:
        return
    for item in items:
        if item.get_closest_marker("arm"):
            item.add_marker(pytest.mark.skip(reason="emulated ARM processors: make test-arm"))


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
    """A processor to run Python programs on: an emulated one, or with None the one here."""

    cpu: str | None = None

    def python(self, *arguments: object, isa: str = "") -> Outcome:
        """Runs Python with edgedec; ``isa`` is EDGEDEC_ISA."""
        program = sys.executable if self.cpu is None else ARM_PYTHON
        done = subprocess.run(
            [program, *map(str, arguments)],
            env={**os.environ, "EDGEDEC_ISA": isa, "QEMU_CPU": self.cpu or ""},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def edgedec(self, *arguments: object, isa: str = "") -> Outcome:
        """Runs the program `edgedec`."""
        return self.python("-c", MAIN, *arguments, isa=isa)


@dataclass(frozen=True)
class OldMachine(Machine):
    """An emulated x86-64 processor from before AVX2, which runs this machine's Python."""

    def python(self, *arguments: object, isa: str = "") -> Outcome:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
        done = subprocess.run(
            ["qemu-x86_64-static", "-cpu", "Nehalem", sys.executable, *map(str, arguments)],
            env={**environment, "EDGEDEC_ISA": isa},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def here() -> Machine:
    """The machine that runs the tests."""
    return Machine()


@pytest.fixture(scope="session")
def arm() -> Machine:
    """An emulated ARM processor with everything."""
    return Machine("max")
