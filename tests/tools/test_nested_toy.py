"""`tools/nested_toy.py`: all ways to have a small model in a large one are trained and measured."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra train")
pytestmark = pytest.mark.slow

TOOL = Path(__file__).parents[2] / "tools" / "nested_toy.py"


def test_all_ways_are_measured(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abcdefgh" * 2000)
    command = [sys.executable, str(TOOL), str(tmp_path / "text.txt"), "--steps", "30"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = re.findall(r"^\| ([^|]+) \| (\d+)% \| ([\d.]+) \| ([\d.]+) \| (\d+)% \|$", said, re.M)
    assert {name for name, *_ in rows} >= {"SortedNet", "MatFormer", "FiRST", "M2R2"}
    found = {name: (float(whole), float(small)) for name, _, whole, small, _ in rows}
    assert found["SortedNet"][1] < found["plain, half of its layers"][1]
    assert found["MatFormer"][1] < found["plain, a quarter of its MLPs"][1]
    assert found["M2R2"][1] < found["plain, half of its layers"][1]
    assert max(whole for whole, _ in found.values()) < 4  # of 8 bits
