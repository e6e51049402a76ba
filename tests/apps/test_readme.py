"""The README's commands do what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAM = f"{sys.executable} -c 'from edgedec.apps.cli import main; main()'"

pytestmark = pytest.mark.e2e


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_it_begins_with_the_two_commands() -> None:
    targets = re.findall(r"^make (\w+)", blocks("sh")[0], re.MULTILINE)
    assert targets == ["run", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_commands(smollm2_gguf: Path, tmp_path: Path) -> None:
    commands = [line for block in blocks("sh")[1:] for line in block.splitlines()]
    assert len(commands) >= 6
    for command in commands:
        shell = re.sub(r"\bedgedec (?=[a-z])", lambda _: f"{PROGRAM} ", command)
        shell = shell.replace("smollm2-135m-instruct", str(smollm2_gguf))
        done = subprocess.run(
            ["bash", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert done.stdout.strip(), command


def test_python(smollm2_bundle: Path, tmp_path: Path) -> None:
    (code,) = blocks("python")
    assert len([line for line in code.splitlines() if line]) <= 5
    (tmp_path / "smollm2.edgedec").symlink_to(smollm2_bundle)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "blue" in done.stdout


def test_options_named_in_the_text_exist() -> None:
    sources = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "apps").rglob("*.py"))
    for option in set(re.findall(r"`(--[a-z-]+)", README)):
        name = option.removeprefix("--").replace("-", "_")
        assert option in sources or re.search(rf"\b{name}:", sources), option
