"""The extension for VS Code builds with npm, and its client knows inline completion."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.long
def test_the_extension_builds(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    folder = tmp_path / "vscode"
    shutil.copytree(ROOT / "examples/vscode", folder)
    for command in (["npm", "install", "--no-audit", "--no-fund"], ["npm", "run", "build"]):
        subprocess.run(command, cwd=folder, check=True, timeout=300, capture_output=True)
    built = (folder / "out/extension.js").read_text(encoding="utf-8")
    assert "textDocument/inlineCompletion" in built
    assert 'require("vscode")' in built
    subprocess.run(["node", "--check", "out/extension.js"], cwd=folder, check=True)
