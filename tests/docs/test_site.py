"""The documentation site: every page is in it, and it builds without a warning."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "mkdocs.yml"
_PAGE = re.compile(r"^ +- .+: (\S+\.md)$", re.MULTILINE)
_FROM_THE_ROOT = {"index", "architecture", "changelog", "contributing", "security"}


def test_every_page_has_its_place() -> None:
    placed = _PAGE.findall(CONFIG.read_text(encoding="utf-8"))
    assert len(placed) == len(set(placed))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages == set(placed) - {f"{name}.md" for name in _FROM_THE_ROOT}


@pytest.mark.e2e
@pytest.mark.skipif(importlib.util.find_spec("mkdocstrings") is None, reason="needs extra docs")
def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    commands = (tmp_path / "reference" / "cli.html").read_text(encoding="utf-8")
    assert "edgedec train head" in commands
    assert "--max-new-tokens" in commands
    python = (tmp_path / "reference" / "python.html").read_text(encoding="utf-8")
    assert "generate_many" in python
    assert "bundle-format.html" in (tmp_path / "index.html").read_text(encoding="utf-8")
