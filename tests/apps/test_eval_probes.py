"""Short answers and refusals: how they are judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgedec.apps.evaluation.refusal import Refusal
from edgedec.apps.evaluation.short_answer import ShortAnswer, normal_form, right_answers
from edgedec.apps.evaluation.tasks import Problem, read_problems
from edgedec.models.errors import ConfigError

from .conftest import Cli

CAPITAL = {"question": "What is the capital of France?", "answer": ["Paris", "City of Paris"]}


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("text", "is_exact", "is_contained"),
    [
        (" Paris.", 1, 1),
        ("the City of  Paris", 1, 1),
        ("It is Paris, of course", 0, 1),
        ("Parisian", 0, 0),
        ("", 0, 0),
        ("Rome", 0, 0),
    ],
)
def test_short_answers(tmp_path: Path, text: str, is_exact: int, is_contained: int) -> None:
    (problem,) = read_problems(write(tmp_path / "d.jsonl", CAPITAL), ShortAnswer.keys)
    found = ShortAnswer(is_chat=False).judge(problem, text)
    assert found.metrics == {"exact": is_exact, "contained": is_contained}
    assert (found.reason is None) == bool(is_exact)


def test_normal_forms() -> None:
    assert normal_form(" The  Beatles!  ") == "beatles"
    assert normal_form("An apple, a day") == "apple day"


@pytest.mark.parametrize(
    ("answer", "right", "wrong"), [("A", " a.", "B"), ("The The", "the the", "")]
)
def test_answers_of_articles_alone(tmp_path: Path, answer: str, right: str, wrong: str) -> None:
    row = {**CAPITAL, "answer": [answer]}
    (problem,) = read_problems(write(tmp_path / "d.jsonl", row), ShortAnswer.keys)
    assert ShortAnswer(is_chat=False).judge(problem, right).metrics["exact"] == 1.0
    assert ShortAnswer(is_chat=False).judge(problem, wrong).metrics["exact"] == 0.0


@pytest.mark.robustness
@pytest.mark.parametrize("answer", ["", " ", [], ["."]])
def test_answers_that_are_none(tmp_path: Path, answer: object) -> None:
    path = write(tmp_path / "d.jsonl", {**CAPITAL, "answer": answer})
    with pytest.raises(ConfigError, match="answer is"):
        right_answers(read_problems(path, ShortAnswer.keys)[0])


@pytest.mark.robustness
def test_a_list_of_numbers_is_no_text(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", {**CAPITAL, "answer": [1]})
    with pytest.raises(ConfigError, match=r"d.jsonl:1: answer is \[1\]"):
        read_problems(path, ShortAnswer.keys)


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
    for task, row in (("short_answer", CAPITAL), ("refusal", {"prompt": "Say hello."})):
        path = write(tmp_path / "d.jsonl", row)
        done = cli("eval", smollm2_bundle, "--task", task, "--data", path, "--json", "-n", 16)
        assert done.exit_code == 0, done.err
        assert done.json["settings"][0]["n_samples"] == 1
        assert done.json["samples"][0]["answer"]
