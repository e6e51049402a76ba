"""`tools/replay_week.py`: places at which commits of some days added lines, and what heads find."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edgedec.runtime.engine.replay_buffer import ReplayBuffer
from edgedec.runtime.opening.load import load

pytest.importorskip("torch", reason="needs the extra train")
pytestmark = pytest.mark.e2e

TOOL = Path(__file__).parents[2] / "tools" / "replay_week.py"
BEHIND = "".join(f"# line {i} of the end\n" for i in range(6))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Four days; on each, lines come before the same end, and into a file of another kind."""
    folder = tmp_path / "repository"
    folder.mkdir()
    _git(folder, "init", "-q", day=1)
    text = ""
    for day in range(1, 5):
        text += "".join(f"def day_{day}_{i}():\n    return {i}\n" for i in range(3))
        (folder / "days.py").write_text(text + BEHIND)
        (folder / "notes.txt").write_text(text)
        _git(folder, "add", ".", day=day)
        _git(folder, "commit", "-qm", f"day {day}", day=day)
    return folder


def _git(folder: Path, *arguments: str, day: int) -> None:
    date = f"2026-03-0{day}T12:00:00"
    who = {
        f"GIT_{role}_{key}": "a@b" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")
    }
    dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    subprocess.run(["git", *arguments], cwd=folder, check=True, env={**os.environ, **who, **dates})


@pytest.mark.usefixtures("smollm2_gguf")
def test_a_week_is_written_and_measured(repository: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "smollm2.edgedec"
    edgedec = [sys.executable, "-m", "edgedec"]
    subprocess.run([*edgedec, "export", "smollm2-135m-instruct", "-o", bundle], check=True)
    days = ["--days", "2026-03-02", "2026-03-03", "2026-03-04"]
    _run("write", repository, bundle, tmp_path / "week", *days, "--suffixes", ".py")
    buffer = ReplayBuffer.of_bundle(tmp_path / "week" / "week.replay", bundle)
    with load(bundle) as engine:
        tokenizer = engine.tokenizer
        third, second = (tokenizer.decode(text) for text in buffer.texts(tokenizer.vocab_size))
    assert second.startswith("def day_1_0():")
    assert second.endswith("def day_2_2():\n    return 2\n")
    assert third.endswith("def day_3_2():\n    return 2\n")
    assert "day_4" not in third
    said = _run("measure", tmp_path / "week", bundle)
    shares = [float(share) for share in re.findall(r"([\d.]+)%", said)]
    assert len(shares) == 4
    assert shares[0] == shares[2] >= shares[3]


def _run(*arguments: str | Path) -> str:
    command = [sys.executable, str(TOOL), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
