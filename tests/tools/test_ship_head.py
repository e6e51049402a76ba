"""A head goes into the distribution of heads only if its model is the bundle's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgedec.export.heads.shipped_heads import shipped_heads

ROOT = Path(__file__).parents[2]
NAME = "smollm2-135m-instruct"

pytestmark = pytest.mark.e2e


def ship(root: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a copy of the tool, which writes below ``root``."""
    (root / "tools").mkdir(exist_ok=True)
    (root / "heads/edgedec_heads").mkdir(parents=True, exist_ok=True)
    script = shutil.copy(ROOT / "tools/ship_head.py", root / "tools")
    command = [sys.executable, script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_shipped_head_is_listed_as_the_tree_lists_it(
    smollm2_bundle: Path, tmp_path: Path
) -> None:
    head = shipped_heads()[NAME]
    done = ship(tmp_path, NAME, smollm2_bundle, head.path)
    assert done.returncode == 0, done.stderr
    listed = (tmp_path / "heads/edgedec_heads/heads.toml").read_text()
    assert listed in head.path.with_name("heads.toml").read_text()
    assert (tmp_path / f"heads/edgedec_heads/{NAME}.safetensors").read_bytes() == (
        head.path.read_bytes()
    )


def test_what_is_no_head_of_the_bundle_is_refused(smollm2_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"x")
    done = ship(tmp_path, NAME, smollm2_bundle, tmp_path / "x.safetensors")
    assert done.returncode == 1
    assert done.stderr.startswith("error: x.safetensors is not a draft head")
    assert not (tmp_path / "heads/edgedec_heads/heads.toml").exists()
