"""Remarks about draft models that hardly suit, with what they saved or cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgedec.apps.run.odd_drafts import draft_problem, measured_saving

Cli = Callable[..., Any]


def test_a_draft_model_as_large_as_the_target_is_remarked(
    cli: Cli, small_bundle: Path, smollm2_bundle: Path
) -> None:
    problem = draft_problem(small_bundle, smollm2_bundle)
    assert problem.startswith(f"the draft model {smollm2_bundle} has ")
    assert problem.endswith(": it may lose time")
    assert draft_problem(smollm2_bundle, small_bundle) == ""  # narrow, and the same tokenizer
    assert draft_problem(small_bundle, None) == ""


@pytest.mark.e2e
def test_run_says_what_it_cost(cli: Cli, smollm2_bundle: Path) -> None:
    asked = ("run", smollm2_bundle, "One, two, three", "--draft", smollm2_bundle, "-n", 12)
    done = cli(*asked)
    assert "it may lose time" in done.err
    assert measured_saving(done.err.splitlines()) != ""
    silent = cli(*asked, "--json")
    assert "it may lose time" not in silent.err


def test_the_saving_is_found_among_explanations() -> None:
    line = "plain decoding would have taken about 1.00 s for the tokens of all rounds; ..."
    assert measured_saving(["free drafts: 2 rounds", line]) == line
    assert measured_saving(["the method plain decides nothing"]) == ""
