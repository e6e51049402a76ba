"""Schemas that a model follows: what is counted, and what judges."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from edgedec.apps.evaluation.json_schema import JsonSchema, find_judge
from edgedec.apps.evaluation.samples import Sample
from edgedec.apps.evaluation.scores import followed
from edgedec.apps.evaluation.tasks import Problem
from edgedec.models.errors import ConfigError

from .conftest import Cli

POINT = {
    "type": "object",
    "properties": {"kind": {"enum": ["a", "b"]}, "size": {"type": "integer", "maximum": 99}},
    "required": ["kind", "size"],
    "additionalProperties": False,
}
UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}


def write(path: Path, *schemas: Any) -> Path:
    rows = [{"json_schema": json.dumps(s), "unique_id": f"s{i}"} for i, s in enumerate(schemas)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def problem(schema: Any) -> Problem:
    return Problem("p", "f:1", {"json_schema": json.dumps(schema)})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"kind": "a", "size": 7}', None),
        ('{"kind": "c", "size": 7}', "$.kind: 'c' is not one of ['a', 'b']"),
        ('{"kind": "a", "size": 100}', "$.size: 100 is greater than the maximum of 99"),
        ('{"kind": "a"', "not JSON"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_answers_are_judged(text: str, reason: str | None) -> None:
    found = JsonSchema(is_chat=False, most_tokens=100).judge(problem(POINT), text)
    assert found.metrics == {"compiled": 1.0, "valid": float(reason is None)}
    assert (found.reason is None) == (reason is None)
    assert reason is None or reason in (found.reason or "")


def test_the_draft_of_a_schema_counts() -> None:
    judge = find_judge()
    bound = {"minimum": 1, "exclusiveMinimum": True}  # so of draft 4 alone
    draft4 = {"$schema": "http://json-schema.org/draft-04/schema#", **bound}
    assert "less than or equal to" in (judge(json.dumps(draft4), 1) or "")
    assert judge(json.dumps({"format": "date"}), "2020-13-01") is not None


@pytest.mark.robustness
def test_nothing_is_fetched() -> None:
    reason = find_judge()(json.dumps({"$ref": "http://localhost:9/schema.json"}), 1)
    assert reason is not None
    assert reason.startswith("cannot be judged")


def test_the_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    monkeypatch.delitem(sys.modules, "edgedec.apps.evaluation.schema_judge", raising=False)
    with pytest.raises(ConfigError, match=r"needs the package jsonschema: pip install '.*\[eval\]"):
        find_judge()


def test_only_whole_answers_can_be_valid() -> None:
    def sample(valid: float, finish_reason: str, **more: float) -> Sample:
        metrics = {"valid": valid, "compiled": 1.0, **more}
        return Sample(fingerprint="f", name="n", metrics=metrics, finish_reason=finish_reason)

    times = [{"grammar_ms": 0.1, "compile_ms": 3.0}, {"grammar_ms": 0.3, "compile_ms": 9.0}]
    found = followed([sample(1, "stop", **times[0]), sample(0, "length", **times[1])])
    assert found is not None
    assert (found.n_compiled, found.n_finished, found.n_valid) == (2, 1, 1)
    assert (found.grammar_ms, found.most_grammar_ms) == (pytest.approx(0.2), 0.3)
    assert followed([sample(0, "")]) is None


@pytest.mark.e2e
def test_a_model_follows_schemas(cli: Cli, smollm2_bundle: Path, tmp_path: Path) -> None:
    long, huge = ({"description": "long " * n, "const": 1} for n in (2000, 40_000))
    path = write(tmp_path / "s.jsonl", POINT, UNIQUE, long, huge)
    command = ["eval", smollm2_bundle, "--task", "json_schema", "--data", path, "-n", 60]
    command += ["--context", 1024]
    done = cli(*command, "--json")
    assert done.exit_code == 0, done.err
    (row,) = done.json["settings"]
    found = {sample["name"]: sample for sample in done.json["samples"]}
    assert found["s0"]["metrics"]["valid"] == 1, found["s0"]
    assert found["s0"]["n_prompt_tokens"] > found["s2"]["n_prompt_tokens"]  # it did not fit
    assert found["s2"]["answer"] == found["s3"]["answer"] == "1"
    assert found["s1"]["metrics"] == {"compiled": 0, "valid": 0}
    assert "uniqueItems" in found["s1"]["reason"]
    assert row["followed"]["n_valid"] == row["followed"]["n_finished"] == 3
    assert row["followed"]["grammar_ms"] > 0
    assert "3 of 3 whole answers are valid" in cli(*command).out
