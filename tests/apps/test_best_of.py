"""`edgedec run --best-of`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


@pytest.mark.e2e
def test_the_command_line(cli: Cli, smollm2_bundle: Path, tmp_path: Path) -> None:
    command = ["run", smollm2_bundle, "Write add(a, b) in Python.", "-n", 24]
    tests = tmp_path / "tests.py"
    done = cli(*command, "--best-of", 2, "--choose", "likelihood")
    assert done.exit_code == 0, done.err
    assert "of 2 by likelihood" in done.err
    reported = cli(*command, "--best-of", 3, "--choose", "weighted", "--json").json
    assert len(reported["tries"]) == 3
    assert reported["text"] == reported["tries"][reported["chosen"]]["text"]
    assert all(one["score"] >= 0 for one in reported["tries"])
    tests.write_text("assert add(1, 1) == 3\n")
    reported = cli(*command, "--best-of", 2, "--choose", "iterate", "--tests", tests, "--json").json
    assert [one["score"] for one in reported["tries"]] == [0, 0]
    assert "need --best-of" in cli(*command, "--choose", "vote").error
    assert "go together" in cli(*command, "--best-of", 2, "--choose", "tests").error
    assert "go together" in cli(*command, "--best-of", 2, "--tests", tests).error
    missing = cli(*command, "--best-of", 2, "--choose", "tests", "--tests", tmp_path / "no.py")
    assert "cannot read" in missing.error
    assert "cannot be combined with --session" in cli(*command, "--best-of", 2, "--explain").error


@pytest.mark.e2e
def test_tests_that_write_or_end_themselves_choose_nothing(
    cli: Cli, smollm2_bundle: Path, tmp_path: Path
) -> None:
    """Nothing that tests do reaches the machine; every try fails them, and one is printed."""
    tests = tmp_path / "tests.py"
    tests.write_text(f"import os\nopen({str(tmp_path / 'made')!r}, 'w')\nos.kill(os.getpid(), 9)\n")
    command = ["run", smollm2_bundle, "Say a.", "-n", 4, "--best-of", 2, "--choose", "tests"]
    done = cli(*command, "--tests", tests, "--json")
    assert done.exit_code == 0, done.err
    assert [one["score"] for one in done.json["tries"]] == [0, 0]
    assert not (tmp_path / "made").exists()


def test_more_tries_than_memory_holds(cli: Cli) -> None:
    done = cli("run", "nowhere.edgedec", "Hi", "--best-of", 10**9)
    assert done.exit_code != 0
    assert "1000000000 is not in the range 1<=x<=256" in done.err
