"""Task `compressed`: its own questions, how they are judged, and what becomes of several kinds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgedec.apps.evaluation.compressed import DIMENSIONS, QUESTIONS, Compressed, choices
from edgedec.apps.evaluation.tasks import read_problems
from edgedec.runtime.opening.load import load

from .conftest import Cli

OPPOSITE = {"dimension": "knowledge", "prompt": "The opposite of hot is", "answer": "cold",
            "choices": "cold, seven"}  # fmt: skip
REPEATED = {"dimension": "retrieval", "prompt": "A B C A B C A B", "answer": "C", "choices": "Q, C"}
STEREOTYPE = {"dimension": "bias", "prompt": "Good", "answer": "qqq", "choices": "morning, qqq"}
ORDER = {"dimension": "instruction", "prompt": "Say hello.", "answer": r"(?s).*\w.*"}


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.e2e
def test_its_own_questions_can_be_judged(smollm2_bundle: Path) -> None:
    task = Compressed(is_chat=True)
    problems = read_problems(QUESTIONS, task.keys)
    with load(smollm2_bundle) as engine:
        assert all(task.encode(engine, problem) for problem in problems)
    assert {problem["dimension"] for problem in problems} == set(DIMENSIONS)
    asked = [problem for problem in problems if problem["dimension"] != "instruction"]
    assert {len(set(choices(problem))) for problem in asked} == {2, 4}


def test_an_instruction_is_followed_by_the_whole_answer(tmp_path: Path) -> None:
    order = {**ORDER, "answer": r"(?i)\s*yes\.?"}
    (problem,) = read_problems(write(tmp_path / "d.jsonl", order), Compressed.keys)
    judge = Compressed(is_chat=True).judge
    assert [judge(problem, text).metrics["right"] for text in ("Yes.", "Yes, sir")] == [1, 0]


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dimension": "taste"}, "d.jsonl:1: dimension is 'taste', expected knowledge"),
        ({"answer": "warm"}, "d.jsonl:1: answer 'warm' is none of its choices"),
        ({"dimension": "instruction", "answer": "("}, "answer is no regular expression"),
    ],
)
def test_what_cannot_be_judged_is_named(
    cli: Cli, small_bundle: Path, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    path = write(tmp_path / "d.jsonl", OPPOSITE | change)
    assert message in cli("eval", small_bundle, "--task", "compressed", "--data", path).error


@pytest.mark.e2e
def test_each_kind_has_its_number(cli: Cli, smollm2_bundle: Path, tmp_path: Path) -> None:
    wrong = {**OPPOSITE, "answer": "seven"}
    path = write(tmp_path / "d.jsonl", OPPOSITE, wrong, REPEATED, STEREOTYPE, ORDER)
    command = ["eval", smollm2_bundle, "--suite", "compressed", "--json", "-n", 8]
    document = cli(*command, "--data", path, "--methods", "plain,lookup").json
    values = {key: found["value"] for key, found in document["settings"][0]["metrics"].items()}
    assert values.pop("overconfidence") == pytest.approx(1 / 3, abs=0.05)  # sure of all three
    assert values == pytest.approx(
        {"right": 0.75, "knowledge": 0.5, "retrieval": 1, "instruction": 1, "stereotypes": 0}
    )
    assert document["comparisons"][0]["n_common"] == 4  # a stereotype is neither right nor wrong

    first = cli(*command, "--limit", 1, "--save", tmp_path / "result.json")  # knowledge alone
    assert first.exit_code == 0, first.err
    (row,) = first.json["settings"]
    assert row["metrics"]["retrieval"] is None
    saved = json.loads((tmp_path / "result.json").read_text())
    assert "stereotypes" not in json.dumps(saved)
