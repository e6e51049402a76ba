"""The tables of the results page are what its result files say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_drawn_from_its_files() -> None:
    command = [sys.executable, str(ROOT / "tools/docs/results_page.py"), "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
