"""Every program in examples/ does what its first lines say, run as they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_example(example: Path, smollm2_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "smollm2.edgedec").symlink_to(smollm2_bundle)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    source = example.read_text(encoding="utf-8")
    if "PySide6" in source:
        pytest.importorskip("PySide6.QtWidgets", exc_type=ImportError)
    lines = re.findall(r"^python (.+)$", source, re.MULTILINE)
    assert lines, "an example says how it is run"
    for line in lines:
        words = line.split()
        assert words[0] == f"examples/{example.name}"
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={**os.environ, "QT_QPA_PLATFORM": "offscreen"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
