"""Diffs of Python's difflib and of git, read."""

from __future__ import annotations

import difflib
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from edgedec.autocomplete.edits.diffs import read_diff
from edgedec.models.errors import ConfigError


def undone(now: list[str], diff: str) -> list[str]:
    """Returns the lines before a diff, by its changes and the lines after it."""
    lines = list(now)
    for change in reversed(read_diff(diff)):
        end = change.line + len(change.after)
        assert tuple(lines[change.line : end]) == change.after
        start = change.line - len(change.above)
        assert tuple(lines[start : change.line]) == change.above
        assert not change.below or lines[end] == change.below[0]
        lines[change.line : end] = change.before
    return lines


@pytest.mark.parametrize("n_context", [0, 1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_what_difflib_writes_can_be_undone(seed: int, n_context: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        before = [rng.choice("abc-+ \\") * rng.randrange(3) for _ in range(rng.randrange(12))]
        now = [line for line in before if rng.random() < 0.7]
        now.insert(rng.randrange(len(now) + 1), "new")
        diff = difflib.unified_diff(before, now, "a/x.py", "b/x.py", n=n_context, lineterm="")
        assert undone(now, "\n".join(diff)) == before


def test_what_git_writes_is_read(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    (tmp_path / "old file").write_bytes(b"a\r\nb\nc")
    (tmp_path / "new file").write_bytes(b"a\r\nB\nc\n")
    command = ["git", "diff", "--no-index", "old file", "new file"]
    diff = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    (change,) = read_diff(diff.stdout)
    assert (change.name, change.line, change.before) == ("new file", 1, ("b", "c"))
    (tmp_path / "old file").write_bytes(b"\0\1")
    diff = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert read_diff(diff.stdout) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "without hunks"),
        ("--- a\n+++ b\n@@ -1,2 +1,2 @@\n-a\n", "ends within a hunk"),
        ("--- a\n+++ b\n@@ -1 +1 @@\nx\n", "line 4 of the diff is 'x'"),
    ],
)
def test_what_is_no_diff_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_diff(text)
