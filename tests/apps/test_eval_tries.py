"""Settings of `edgedec eval` with several tries at each problem."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgedec.apps.evaluation.report import _false_positives
from edgedec.apps.evaluation.samples import Sample
from edgedec.apps.evaluation.tries import Tries, parse_tries
from edgedec.apps.programs.assertions import one_by_one, public_half
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig

Cli = Callable[..., Any]
TEST = """
def check(candidate):
    table = {1: 2}
    assert candidate(0) == 1
    assert candidate(1) == table[1]
    for n in range(3):
        pass
    assert candidate(2) == 3
"""


def test_settings_are_read_as_they_are_written() -> None:
    tries = Tries.parse("best-of:n=4,choose=weighted,temperature=0.6")
    assert tries == Tries(4, "weighted", 0.6)
    assert Tries.parse(str(tries)) == tries
    assert Tries.parse("best-of:") == Tries()
    assert Tries.of("plain") is None
    assert tries.request(GenerationConfig()).sampling.temperature == 0.6


@pytest.mark.parametrize(
    "text",
    ["best-of:n=x", "best-of:n=0", "best-of:choose=luck", "best-of:temperature=0", "best-of:m=1",
     "best-of:n"],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected best-of|makes no sense"):
        Tries.parse(text)


def test_options_name_every_number_and_chooser() -> None:
    found = parse_tries("4,8", "vote, weighted", 0.7)
    assert found == [Tries(n, choose, 0.7) for n in (4, 8) for choose in ("vote", "weighted")]
    with pytest.raises(ConfigError, match="--best-of is 'many', expected numbers"):
        parse_tries("many", "vote", 0.7)


def test_every_second_assertion_is_held_back() -> None:
    half = public_half(TEST)
    assert "candidate(0)" in half
    assert "candidate(1)" not in half
    assert "candidate(2)" in half
    assert "range(3)" in half
    assert public_half("def check(c):\n    assert c(1)\n").count("assert") == 1
    assert public_half("no python (") == "no python ("


def test_assertions_are_tried_one_by_one() -> None:
    """Each alone says what all together hide: which of them a candidate passes."""
    verdicts = []
    for test in one_by_one(TEST):
        names: dict[str, Any] = {}
        exec(test, names)
        try:
            names["check"](lambda n: 2 if n == 1 else 9)
            verdicts.append(True)
        except AssertionError:
            verdicts.append(False)
    assert verdicts == [False, True, False]
    assert one_by_one("assert 1\n") == ["assert 1\n"]
    assert one_by_one("no python (") == ["no python ("]
    first, second = one_by_one("x = 3\nassert x == 3\nassert x == 4\n")
    assert (first, second) == ("x = 3\nassert x == 3", "x = 3\nassert x == 4")


@pytest.mark.e2e
def test_tries_take_turns_with_one_answer(cli: Cli, smollm2_bundle: Path, tmp_path: Path) -> None:
    maths = tmp_path / "maths.jsonl"
    problem = {"question": "Anna has 2 apples and buys 3. How many has she?", "answer": "#### 5"}
    maths.write_text(json.dumps(problem) + "\n")
    command = ["eval", smollm2_bundle, "--task", "gsm8k", "--data", maths, "-n", 16, "--json"]
    done = cli(*command, "--best-of", "3", "--choose", "vote,weighted")
    assert done.exit_code == 0, done.err
    one, three, weighted = done.json["samples"]
    assert weighted["n_new_tokens"] == three["n_new_tokens"]  # the same tries
    assert weighted["seconds"] >= 0.9 * three["seconds"]
    assert done.json["settings"][0]["facts"]["request"]["sampling"]["temperature"] == 0
    assert three["n_new_tokens"] > one["n_new_tokens"]
    assert done.json["settings"][1]["facts"]["tries"] == "best-of:n=3,choose=vote,temperature=0.8"
    assert "needs a task with tests" in cli(*command, "--best-of", "2", "--choose", "tests").error
    assert "use --best-of N" in cli(*command, "--settings", "plain; best-of:n=2").error
    assert "--choose needs" in cli(*command, "--choose", "vote").error
    assert "combined with --frontier" in cli(*command, "--best-of", "2", "--frontier").error


@pytest.mark.e2e
def test_tests_choose_by_half_and_judge_by_all(
    cli: Cli, smollm2_bundle: Path, tmp_path: Path
) -> None:
    code = tmp_path / "code.jsonl"
    problem = {"task_id": "T/0", "prompt": "def next_of(n):\n", "test": TEST,
               "entry_point": "next_of"}  # fmt: skip
    code.write_text(json.dumps(problem) + "\n")
    command = ["eval", smollm2_bundle, "--task", "human_eval", "--data", code, "-n", 12, "--json"]
    done = cli(*command, "--best-of", "2", "--choose", "tests,iterate,tree")
    assert done.exit_code == 0, done.err
    one, chosen, iterated, planned = done.json["samples"]
    assert 0 <= planned["metrics"]["shown"] <= 1
    assert one["n_new_tokens"] <= planned["n_new_tokens"] <= 2 * 12
    assert done.json["settings"][3]["label"] == "best-of:n=2,choose=tree"
    assert "shown" not in one["metrics"]
    assert chosen["metrics"]["passed"] in (0.0, 1.0)
    assert iterated["metrics"]["shown"] in (0.0, 1.0)
    assert iterated["n_prompt_tokens"] >= chosen["n_prompt_tokens"]
    assert done.json["settings"][0]["false_positives"] is None
    assert done.json["settings"][1]["false_positives"]["n_passing"] in (0, 1)


def test_answers_that_pass_what_chose_them_and_fail_the_rest_are_counted() -> None:
    verdicts = [(1.0, 1.0), (1.0, 0.0), (0.0, 0.0), (1.0, 0.0)]
    samples = [
        Sample(fingerprint="f", name=str(i), metrics={"shown": shown, "passed": passed})
        for i, (shown, passed) in enumerate(verdicts)
    ]
    assert _false_positives(samples) == {"n_false": 2, "n_passing": 3}
    assert _false_positives([replace(samples[0], metrics={"passed": 1.0})]) is None
