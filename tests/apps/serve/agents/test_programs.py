"""Agents that are programs, such as Codex and Claude Code, do a task of three calls."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import ANSWER, NOTES, SAID, TASK, Task
from .scripted_model import call

DEADLINE_S = 120

pytestmark = pytest.mark.e2e


def run(program: str, arguments: list[str], folder: Path, env: dict[str, str]) -> str:
    """Returns what a program prints that knows no settings but ``env``; skips without it."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"needs the program {program}")
    done = subprocess.run(
        [path, *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder.parent), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_codex(serve: Callable[..., Any], task: Task) -> None:
    def shell(command: str) -> str:
        return call("exec_command", cmd=command)

    server = serve(shell("ls"), shell("cat notes.txt"), shell(f"echo '{ANSWER}' > answer.txt"))
    arguments = ["exec", "--oss", "--local-provider", "ollama", "--model", "scripted", "--json"]
    arguments += ["--skip-git-repo-check", "--sandbox", "danger-full-access", TASK]
    settings = {"CODEX_OSS_BASE_URL": f"{server.url}/v1", "CODEX_HOME": str(task.folder.parent)}
    printed = run("codex", arguments, task.folder, settings)
    items = [event["item"] for event in map(json.loads, printed.splitlines()) if "item" in event]
    outputs = [item["aggregated_output"] for item in items if item.get("exit_code") is not None]
    assert outputs == ["notes.txt\n", NOTES, ""]
    assert (task.folder / "answer.txt").read_text(encoding="utf-8") == f"{ANSWER}\n"
    assert items[-1]["text"] == SAID


def test_claude_code(serve: Callable[..., Any], task: Task) -> None:
    server = serve(
        call("Bash", command="ls", description="List files"),
        call("Read", file_path=str(task.folder / "notes.txt")),
        call("Write", file_path=str(task.folder / "answer.txt"), content=ANSWER),
    )
    settings = {
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": "scripted",
        "ANTHROPIC_SMALL_FAST_MODEL": "scripted",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    arguments = ["-p", TASK, "--allowedTools", "Bash Read Write", "--output-format", "json"]
    result = json.loads(run("claude", arguments, task.folder, settings))
    assert result["num_turns"] == 4
    assert not result["permission_denials"]
    task.check(result["result"])
