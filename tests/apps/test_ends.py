"""Answers end by themselves, or say what ended them; text from a pipe is put before a prompt."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..runtime.opening.test_load import mutable_copy, replace

Cli = Callable[..., Any]
STORY = "The cat of the miller is called Tom.\n"
QUESTION = "What is the cat called?"
PROGRAM = [sys.executable, "-m", "edgedec", "run"]

pytestmark = pytest.mark.e2e


def n_prompt_tokens(bundle: Path, *arguments: str, **options: Any) -> int:
    """Returns how many tokens the model reads."""
    done = subprocess.run(
        [*PROGRAM, bundle, *arguments, "-n", "2", "--json"],
        capture_output=True, check=True, timeout=120, **options,
    )  # fmt: skip
    number: int = json.loads(done.stdout)["n_prompt_tokens"]
    return number


def test_a_pipe_beside_a_prompt(small_bundle: Path, tmp_path: Path) -> None:
    whole = n_prompt_tokens(small_bundle, f"{STORY}\n{QUESTION}")
    assert n_prompt_tokens(small_bundle, QUESTION, input=STORY.encode()) == whole
    path = tmp_path / "question.txt"
    path.write_text(QUESTION, encoding="utf-8")
    beside_file = n_prompt_tokens(small_bundle, "--prompt-file", str(path), input=STORY.encode())
    assert beside_file == whole
    alone = n_prompt_tokens(small_bundle, QUESTION, stdin=subprocess.DEVNULL)
    assert alone < whole
    for nothing in (b"", b"\n \n"):
        assert n_prompt_tokens(small_bundle, QUESTION, input=nothing) == alone
    assert n_prompt_tokens(small_bundle, "-", input=QUESTION.encode()) == alone


def test_a_pipe_that_gives_nothing_does_not_hang(small_bundle: Path) -> None:
    with subprocess.Popen(
        [*PROGRAM, small_bundle, QUESTION, "-n", "2"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.wait(timeout=120) == 0
        assert process.stderr is not None
        assert "standard input is open and gave nothing" in process.stderr.read()


def test_a_pipe_of_something_else(small_bundle: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, small_bundle, QUESTION], input=b"a\xff", capture_output=True, timeout=120
    )
    assert done.returncode == 1
    assert b"error: standard input is not UTF-8: byte 1 is 0xff" in done.stderr


def test_the_first_answer_ends_by_itself(cli: Cli, smollm2_bundle: Path) -> None:
    done = cli("run", smollm2_bundle, "Why is the sky blue?")
    assert "(stop)" in done.err
    assert "stopped" not in done.err
    assert cli("run", smollm2_bundle, "Why is the sky blue?", "-n", 0).out == done.out


def test_a_cut_answer_says_so(
    cli: Cli, smollm2_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = cli("run", smollm2_bundle, "Why is the sky blue?", "-n", 5)
    assert "stopped at 5 tokens; -n 0: to the end" in cut.err
    full = cli("run", smollm2_bundle, "Why is the sky blue?", "--context", 60)
    assert "because the context is full: --context N" in full.err
    suggested = cli("suggest", smollm2_bundle, "The capital of France", "-n", 3)
    assert "stopped at 3 tokens; -n N: up to N tokens" in suggested.err
    done = subprocess.run(
        [*PROGRAM[:-1], "chat", smollm2_bundle, "-n", "4"],
        input="Why is the sky blue?\n", capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "stopped at 4 tokens; -n 0: to the end" in done.stderr


def test_a_base_model_does_not_chat(cli: Cli, small_bundle: Path, tmp_path: Path) -> None:
    bundle = mutable_copy(small_bundle, tmp_path / "base.edgedec")
    replace(bundle, "chat_template.jinja", None)
    assert "`edgedec run --raw` has it continue a text" in cli("chat", bundle).error
