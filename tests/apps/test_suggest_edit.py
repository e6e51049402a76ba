"""`edgedec suggest --edit`."""

from __future__ import annotations

import difflib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
BEFORE = "def hello(name):\n    return 'Hello ' + name\n\nprint(hello('Ann'))\n"
NOW = BEFORE.replace("hello", "greet", 1)

pytestmark = pytest.mark.e2e


def diff_of(before: str, now: str, name: str = "a.py") -> str:
    lines = (text.splitlines(keepends=True) for text in (before, now))
    return "".join(difflib.unified_diff(*lines, f"a/{name}", f"b/{name}", n=1))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(NOW)
    (tmp_path / "recent.diff").write_text(diff_of(BEFORE, NOW))
    return tmp_path


@pytest.mark.parametrize("absolute", [False, True])
def test_the_edit_is_a_diff_that_applies(
    cli: Cli, smollm2_bundle: Path, files: Path, absolute: bool
) -> None:
    path = files / "a.py" if absolute else "a.py"
    asked = ["suggest", smollm2_bundle, "--edit", path, "--diff", "recent.diff"]
    asked += ["--min-edit-probability", 0]
    edit = cli(*asked, "--json").json["edit"]
    expected = NOW[: edit["start"]] + edit["text"] + NOW[edit["end"] :]
    done = cli(*asked)
    assert "% likely" in done.err
    if (git := shutil.which("git")) is None:
        pytest.skip("there is no git")
    subprocess.run([git, "apply"], input=done.out.encode(), cwd=files, check=True)
    assert (files / "a.py").read_text() == expected != NOW


def test_no_edit_is_said(cli: Cli, smollm2_bundle: Path, files: Path) -> None:
    asked = ["suggest", smollm2_bundle, "--edit", "a.py", "--diff", "recent.diff"]
    done = cli(*asked, "--min-edit-probability", 1)
    assert (done.exit_code, done.out) == (0, "")
    assert "no edit follows" in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--edit", "a.py"], "--edit needs --diff RECENT"),
        (["--diff", "recent.diff"], "--diff needs --edit FILE"),
        (["Hello", "--edit", "a.py", "--diff", "recent.diff"], "got a text and --edit"),
        (["--edit", "none.txt", "--diff", "recent.diff"], "cannot read none.txt"),
        (["--edit", "a.py", "--diff", "a.py"], "without hunks"),
        (["--edit", "old.txt", "--diff", "old.diff"], "line 1 of old.txt is not as old.diff"),
        (["--edit", "a.py", "--diff", "recent.diff", "--line", "9"], "--line is 9, expected"),
        (["--edit", "a.py", "--diff", "empty"], "empty shows no change"),
    ],
)
def test_what_makes_no_sense_is_refused(
    cli: Cli, smollm2_bundle: Path, files: Path, arguments: list[str], said: str
) -> None:
    (files / "empty").write_text("")
    (files / "old.txt").write_text(BEFORE)
    (files / "old.diff").write_text(diff_of(BEFORE, NOW, "old.txt"))
    done = cli("suggest", smollm2_bundle, *arguments)
    assert done.exit_code != 0
    assert said in done.err
