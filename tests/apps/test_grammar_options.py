"""Schemas, expressions, grammars and affinities from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgedec.system.processors import allowed_processors

Cli = Callable[..., Any]
SCHEMA = json.dumps({"enum": ["red", "green"]})


@pytest.mark.e2e
def test_outputs_follow_what_was_given(cli: Cli, smollm2_bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("llguidance", reason="needs the extra grammar")
    (tmp_path / "colour.json").write_text(SCHEMA)
    (tmp_path / "dice.lark").write_text('start: "one" | "six"')
    for given, expected in (
        (("--regex", "[1-6]"), [str(i) for i in range(1, 7)]),
        (("--json-schema", tmp_path / "colour.json"), ['"red"', '"green"']),
        (("--json-schema", f" {SCHEMA}"), ['"red"', '"green"']),
        (("--grammar", tmp_path / "dice.lark"), ["one", "six"]),
    ):
        done = cli("run", smollm2_bundle, "Choose.", *given, "--json", "--method", "plain")
        assert done.exit_code == 0
        assert done.json["text"] in expected
        assert done.json["finish_reason"] == "stop"


@pytest.mark.e2e
def test_what_the_token_limit_cuts_off_says_so(cli: Cli, smollm2_bundle: Path) -> None:
    pytest.importorskip("llguidance", reason="needs the extra grammar")
    asked = ("run", smollm2_bundle, "Choose.", "--regex", "[a-z]{40}", "--method", "plain")
    done = cli(*asked, "-n", 2)
    assert done.exit_code == 3
    assert done.err.rstrip().endswith(
        "the token limit cut off the structured output: raise --max-new-tokens or --context"
    )
    assert cli(*asked, "-n", 2, "--json").json["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--json-schema", "nothing.json"], "cannot read nothing.json of --json-schema: No such"),
        (["--grammar", "."], "cannot read . of --grammar: Is a directory"),
        (["--json-schema", "{"], "json_schema is not valid JSON"),
        (["--regex", "a", "--json-schema", "{}"], "json_schema and regex are given"),
    ],
)
def test_what_cannot_be_read_is_named_before_loading(
    cli: Cli, tmp_path: Path, given: list[str], message: str
) -> None:
    done = cli("run", tmp_path / "nothing", "hello", *given)
    assert done.exit_code == 1
    assert message in done.error


def test_affinity(cli: Cli, smollm2_bundle: Path) -> None:
    ask = ("run", smollm2_bundle, "Hi", "-n", "2", "--json", "--method", "plain")
    texts = {
        cli(*ask, "--affinity", given).json["text"]
        for given in ("none", str(allowed_processors()[-1]))
    }
    assert len(texts) == 1
    assert "names processor 99999" in cli(*ask, "--affinity", "99999").error
    wrong = cli(*ask, "--affinity", "all")
    assert wrong.exit_code == 2
    assert "expected numbers such as 0,1, or none" in wrong.err
