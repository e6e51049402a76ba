"""What tests share that run programs on other machines: emulated processors, Windows under Wine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
MAIN = "from edgedec.apps.cli import main; main()"


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


def skip_unless_asked(config: pytest.Config, items: list[pytest.Item], marker: str) -> None:
    """Skips tests with a marker that `-m` does not name: they are slow, and need Debian packages.

    `make test` leaves them out.
    """
    if marker in config.option.markexpr:
        return
    for item in items:
        if item.get_closest_marker(marker):
            item.add_marker(pytest.mark.skip(reason=f"another machine: make test-{marker}"))
