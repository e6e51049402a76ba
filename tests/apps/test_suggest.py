"""`edgedec suggest`."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
TEXT = "The capital of France is"

pytestmark = pytest.mark.e2e


def test_completions(cli: Cli, smollm2_bundle: Path) -> None:
    done = cli("suggest", smollm2_bundle, TEXT, "-k", 4, "-n", 5, "--json")
    assert done.exit_code == 0
    found = done.json["completions"]
    assert len(found) == len({one["token_ids"][0] for one in found}) == 4
    assert [one["probability"] for one in found] == sorted(
        (one["probability"] for one in found), reverse=True
    )
    for one in found:
        assert one["probability"] == pytest.approx(math.prod(one["token_probs"]))
        assert len(one["token_ids"]) == len(one["token_probs"]) <= 5
    assert any("Paris" in one["text"] for one in found)
    likeliest = max(found, key=lambda one: one["token_probs"][0])
    run = cli("run", smollm2_bundle, "--raw", TEXT, "-n", 5, "--method", "plain", "--json").json
    n_tokens = len(likeliest["token_ids"])
    assert run["token_ids"][:n_tokens] == likeliest["token_ids"]
    assert run["text"].startswith(likeliest["text"])


def test_shown_to_a_person(cli: Cli, smollm2_bundle: Path, tmp_path: Path) -> None:
    done = cli("suggest", smollm2_bundle, TEXT, "-k", 2, "-n", 3)
    lines = done.out.splitlines()
    assert len(lines) == 2
    assert all(line.count("%") == 2 for line in lines)
    assert "first  average  completion" in done.err
    found = cli("suggest", smollm2_bundle, TEXT, "-k", 2, "-n", 3, "--json").json["completions"]
    for one, line in zip(found, lines, strict=True):
        mean = math.prod(one["token_probs"]) ** (1 / len(one["token_probs"]))
        assert one["mean_probability"] == pytest.approx(mean)
        shown = [float(word) for word in line.replace("%", " ").split()[:2]]
        assert shown == pytest.approx([100 * one["first_probability"], 100 * mean], rel=1e-2)
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    assert cli("suggest", smollm2_bundle, "--prompt-file", path, "-k", 2, "-n", 3).out == done.out


def test_it_ends_where_the_model_is_unsure(
    cli: Cli, smollm2_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = cli("suggest", smollm2_bundle, TEXT, "-n", 12, "--json").json["completions"]
    assert {one["end"] for one in full} <= {"length", "stop"}
    for option in (("--max-entropy", 1.5), ("--min-prob", 0.7)):
        sure = cli("suggest", smollm2_bundle, TEXT, "-n", 12, *option, "--json").json
        assert any(one["end"] == "unsure" for one in sure["completions"])
        whole = {tuple(one["token_ids"][:1]): one["token_ids"] for one in full}
        for one in sure["completions"]:
            ids = one["token_ids"]
            assert whole[tuple(ids[:1])][: len(ids)] == ids
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    reported = cli("suggest", smollm2_bundle, "-", "-n", 12, "--max-entropy", 0)
    assert reported.out.count("(unsure from here)") == 3


@pytest.mark.parametrize(
    ("options", "code"),
    [(("-k", 9), 2), (("-k", 0), 2), (("-n", 0), 2), (("--max-entropy", -1), 2), ((), 0)],
)
def test_options(cli: Cli, smollm2_bundle: Path, options: tuple[object, ...], code: int) -> None:
    assert cli("suggest", smollm2_bundle, TEXT, *options).exit_code == code


def test_what_does_not_fit(cli: Cli, smollm2_bundle: Path) -> None:
    done = cli("suggest", smollm2_bundle, TEXT, "-n", 30, "--context", 32)
    assert "3 suggestions of 30 tokens need" in done.error
    assert "ask for fewer or shorter ones" in done.error
    assert "empty" in cli("suggest", smollm2_bundle, "").error
