"""Ordinary mistakes of the first hour get one line, with the remedy."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


def test_a_prompt_in_place_of_the_bundle(cli: Cli) -> None:
    for arguments in (("Why is the sky blue?",), ("Why is the sky blue?", "smollm2.edgedec")):
        error = cli("run", *arguments).error
        assert "if that is the prompt, name the bundle before it" in error
        assert len(error) < 200


def test_a_mistyped_name_is_answered_with_the_nearest_first(cli: Cli) -> None:
    error = cli("run", "smolm2", "Hi").error
    assert "did you mean smollm2-" in error
    assert "smollm3" not in error
    assert "edgedec models list shows the names" in cli("run", "zzz", "Hi").error


def test_a_missing_model_file(cli: Cli) -> None:
    assert cli("run", "model.gguf", "Hi").error.endswith("check the path")


def test_a_folder_that_is_no_bundle(cli: Cli, tmp_path: Path) -> None:
    assert "`edgedec export` makes one" in cli("run", tmp_path, "Hi").error


@pytest.mark.e2e
def test_prompts_that_are_none(
    cli: Cli, smollm2_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "latin-1.txt"
    path.write_bytes(b"caf\xe9")
    error = cli("run", smollm2_bundle, "--prompt-file", path).error
    assert "byte 3 is 0xe9" in error
    assert "codec" not in error
    both = cli("run", smollm2_bundle, "Hi", "--prompt-file", path)
    assert both.exit_code == 2
    assert "got PROMPT and --prompt-file, expected one of them" in both.err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b" \n")))
    assert "the prompt is empty" in cli("run", smollm2_bundle).error
