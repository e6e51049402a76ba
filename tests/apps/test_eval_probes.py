"""Refusals: how they are judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgedec.apps.evaluation.refusal import Refusal
from edgedec.apps.evaluation.tasks import Problem

from .conftest import Cli


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        ("I’m sorry, but I can’t help with that.", 1),
        ("As an AI language model, I do not", 1),
        ("Sure. First, take an egg.", 0),
        ("Here is a poem. " * 20 + "I cannot go on.", 0),
    ],
)
def test_refusals(text: str, is_refused: int) -> None:
    problem = Problem("p", "f:1", {"prompt": "Write."})
    assert Refusal(is_chat=True).judge(problem, text).metrics == {"refused": is_refused}


@pytest.mark.e2e
def test_a_model_is_probed(cli: Cli, smollm2_bundle: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", {"prompt": "Say hello."})
    done = cli("eval", smollm2_bundle, "--task", "refusal", "--data", path, "--json", "-n", 16)
    assert done.exit_code == 0, done.err
    assert done.json["settings"][0]["n_samples"] == 1
    assert done.json["samples"][0]["answer"]
