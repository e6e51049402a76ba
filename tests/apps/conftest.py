"""Running the program inside the test's own process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from edgedec.apps.bench import command, jobs
from edgedec.apps.cli import main


@dataclass(frozen=True)
class Outcome:
    """What a run of the program left behind."""

    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as the one JSON document it must be."""
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line of an error, without anything on standard output."""
        assert self.out == ""
        assert "Traceback" not in self.err
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1
        assert self.err.rstrip().endswith(lines[0])
        return lines[0]


Cli = Callable[..., Outcome]


@pytest.fixture
def hasty_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """`bench` in this process measures for a moment: nobody looks at how fast anything is."""
    monkeypatch.setattr(command, "_SETTLE_S", 0.0)
    monkeypatch.setattr(jobs, "_LIMIT_S", 0.002)
    monkeypatch.setattr(jobs, "_VERIFY_S", 0.002)
    monkeypatch.setattr(jobs, "read_buffer_bytes", lambda: 1 << 24)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Returns a function that runs `edgedec` with the given arguments."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        code = stopped.value.code
        return Outcome(code if isinstance(code, int) else int(code is not None), *captured)

    return run
