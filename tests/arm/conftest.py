"""Running Python and `edgedec` on emulated processors and on this machine alike."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from tests.other_machines import MAIN, ROOT, Outcome, skip_unless_asked

ARM_PYTHON = ROOT / "tools/arm/python"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skip_unless_asked(config, items, "arm")


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
