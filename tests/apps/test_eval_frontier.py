"""`edgedec eval --frontier`: reference points, what every setting gives, and the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgedec.apps.evaluation.frontier import (
    GRID,
    REFERENCES,
    frontier_of,
    references_of,
    render_notes,
    render_table,
    render_verdict,
    verdict,
)
from edgedec.apps.evaluation.requests import make_requests
from edgedec.apps.evaluation.samples import Models, Sample, Setting
from edgedec.apps.evaluation.tasks import METRICS
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig

Cli = Callable[..., Any]
PASS = METRICS["human_eval"][0]
MATHS = [
    {"question": f"Anna has {n} apples and buys {n} more. How many has she?",
     "answer": f"{n} + {n}\n#### {2 * n}"} for n in (2, 3)
]  # fmt: skip


def setting(label: str, models: Models = Models.SEPARATE, **request: Any) -> Setting:
    facts = {"models": str(models), "request": {"method": None, "switch": None, **request}}
    if models is Models.DRAFT:
        facts["size_ratio"] = 0.3
    return Setting(label, GenerationConfig(), facts, models)


PLAIN = setting("plain", method="plain")
DRAFT = setting("draft-alone", Models.DRAFT, method="plain")
AUTO = setting("auto", method="auto")
EAD = setting("ead:threshold=1", switch="ead:threshold=1")


def samples(
    one: Setting, passed: str, seconds: float, lossless: bool = True, **more: Any
) -> dict[str, Sample]:
    """Returns a sample per character of ``passed``, named by its place."""
    return {
        str(i): Sample(
            fingerprint=one.fingerprint,
            name=str(i),
            metrics={"passed": float(outcome)},
            seconds=seconds,
            decode_s=seconds / 2,
            n_new_tokens=11,
            lossless=lossless,
            **more,
        )
        for i, outcome in enumerate(passed)
    }


def swept(**ead: Any) -> dict[str, Any]:
    taken = {"passed": "1110", "seconds": 1.0, **ead}
    found = [
        samples(PLAIN, "1111", 4.0, tokens_by_origin={"target": 11}),
        samples(DRAFT, "0001", 0.5, lossless=False, tokens_by_origin={"target": 11}),
        samples(AUTO, "1111", 2.0, tokens_by_origin={"draft": 6, "target": 5}),
        samples(EAD, taken.pop("passed"), taken.pop("seconds"), lossless=False, **taken),
    ]
    document = frontier_of([PLAIN, DRAFT, AUTO, EAD], found, PASS)
    return json.loads(json.dumps(document, allow_nan=False))  # type: ignore[no-any-return]


def test_every_column_by_hand() -> None:
    document = swept(tokens_by_origin={"draft": 8, "target": 3}, switch={"cost_paper": 0.5})
    rows = {row["label"]: row for row in document["settings"]}
    assert [rows[name]["is_reference"] for name in (*REFERENCES, "ead:threshold=1")] == [
        True, True, True, False
    ]  # fmt: skip
    assert [row["lossless"] for row in document["settings"]] == [True, False, True, False]
    assert [row["score"]["value"] for row in document["settings"]] == [1.0, 0.25, 1.0, 0.75]
    assert [row["kept"]["value"] for row in document["settings"]] == [1.0, 0.25, 1.0, 0.75]
    assert [row["time_of_target"]["value"] for row in document["settings"]] == [1, 0.125, 0.5, 0.25]
    assert [row["time_of_auto"]["value"] for row in document["settings"]] == [2, 0.25, 1, 0.5]
    shares = [row["share_target"] for row in document["settings"]]
    assert shares == pytest.approx([1, 0, 1, 3 / 11])
    assert [row["cost_paper"] for row in document["settings"]] == [1.0, 0.3, None, 0.5]
    assert [row["tokens_per_s"] for row in document["settings"]] == pytest.approx([5, 40, 10, 20])
    # Resampled over the problems: of four, one of which fails.
    assert rows["ead:threshold=1"]["score"]["low"] == 0.25
    assert rows["ead:threshold=1"]["score"]["high"] == 1.0
    table = render_table(document)
    line = next(text for text in table.splitlines() if "ead" in text)
    for cell in ("| no ", "75.0%", "0.25", "0.50", "27.3%"):
        assert cell in line


def test_what_taking_turns_costs() -> None:
    passes = {"target": {"n_catch_ups": 2, "n_caught_up": 30, "catch_up_ms": 400.0}, "draft": {}}
    document = swept(seconds=1.0, switch={"passes": passes, "policy_ms": 5.0})
    rows = {row["label"]: row for row in document["settings"]}
    # A step of plain decoding takes 2 s / 10; four samples of 32 tokens in two passes each.
    expected = {"n": 8, "mean_tokens": 16, "ms": 1600, "of_steps": 1600 / (128 * 200)}
    assert rows["ead:threshold=1"]["catch_up"] == pytest.approx(expected)
    assert rows["ead:threshold=1"]["policy_share"] == pytest.approx(0.01)
    (line,) = render_notes(document)
    assert line.startswith("ead:threshold=1: 8 catch-ups of the target model, over 16.0 tokens")
    assert line.endswith("took 1.00% of decoding")
    assert all(rows[name]["policy_share"] is None for name in REFERENCES)


def test_cost_in_the_paper_weighs_tokens() -> None:
    long, short = (
        samples(EAD, "11", 1.0, lossless=False, switch={"cost_paper": cost}) for cost in (0.4, 0.8)
    )
    mixed = {"0": long["0"], "1": short["1"]}
    object.__setattr__(mixed["0"], "n_new_tokens", 30)
    object.__setattr__(mixed["1"], "n_new_tokens", 10)
    others = [samples(one, "11", 1.0) for one in (PLAIN, DRAFT, AUTO)]
    document = frontier_of([PLAIN, DRAFT, AUTO, EAD], [*others, mixed], PASS)
    assert document["settings"][3]["cost_paper"] == pytest.approx((30 * 0.4 + 10 * 0.8) / 40)


def test_a_setting_is_found_or_what_comes_closest() -> None:
    found = swept(passed="1111", seconds=1.5)
    assert found["verdict"]["found"] == "ead:threshold=1"
    text = render_verdict(found)
    assert text.startswith("ead:threshold=1 is faster than lossless auto: 0.750 (0.750 to 0.750)")
    assert "100.0%" in text
    assert "not certain" not in text

    slower = swept(passed="1111", seconds=2.5)
    assert slower["verdict"]["found"] is None
    text = render_verdict(slower)
    assert text.startswith("no approximate setting is faster than lossless auto and keeps 97%")
    assert "ead:threshold=1, takes 1.250 (1.250 to 1.250) of auto's time; none is faster" in text

    worse = render_verdict(swept(passed="1110", seconds=1.0))
    assert "none keeps 97%; the best of the faster ones, ead:threshold=1, keeps 75.0%" in worse


def row(label: str, kept: float, time: float, **more: Any) -> dict[str, Any]:
    reported = {"value": kept, "low": kept - 0.05, "high": kept + 0.05}
    taken = {"value": time, "low": time - 0.1, "high": time + 0.1}
    base = {"label": label, "kept": reported, "time_of_auto": taken}
    return {**base, "lossless": False, "is_reference": False, **more}


def test_the_verdict_among_many() -> None:
    rows = [
        row("auto", 1.0, 1.0, lossless=True, is_reference=True),
        row("draft-alone", 1.0, 0.2, is_reference=True),  # a reference point is no setting
        row("verify", 1.0, 0.5, lossless=True),
        row("exact share", 0.97, 0.9),
        row("slow", 1.1, 1.4),
        row("poor", 0.9, 0.3),
    ]
    found = verdict(rows)
    assert found["found"] == found["fastest_keeping"] == "exact share"
    assert found["best_of_faster"] == "exact share"
    assert found["n_compared"] == 3
    document = {"metric": "pass@1", "keep": 0.97, "settings": rows, "verdict": found}
    assert "not certain" in render_verdict(document)  # its interval begins at 0.92
    without = verdict([one for one in rows if one["label"] != "exact share"])
    assert without["found"] is None
    assert (without["fastest_keeping"], without["best_of_faster"]) == ("slow", "poor")
    assert verdict(rows[:3])["n_compared"] == 0
    nothing = {**document, "settings": rows[:3], "verdict": verdict(rows[:3])}
    assert render_verdict(nothing).startswith("no verdict")


def test_only_problems_that_all_have_answered_count() -> None:
    found = [samples(one, "1100", 1.0) for one in (PLAIN, DRAFT, AUTO, EAD)]
    del found[3]["3"]
    del found[1]["2"]
    document = frontier_of([PLAIN, DRAFT, AUTO, EAD], found, PASS)
    assert document["n_problems"] == 2
    assert {row["score"]["value"] for row in document["settings"]} == {1.0}
    nothing = frontier_of([PLAIN, DRAFT, AUTO, EAD], [{}, *found[1:]], PASS)
    assert nothing["n_problems"] == 0
    assert render_verdict(nothing).startswith("no verdict")


@pytest.mark.parametrize("missing", REFERENCES)
def test_a_reference_point_is_missing(missing: str) -> None:
    settings = [one for one in (PLAIN, DRAFT, AUTO, EAD) if one.label != missing]
    found = [samples(one, "11", 1.0) for one in settings]
    with pytest.raises(ConfigError, match=f"{missing} is missing"):
        frontier_of(settings, found, PASS)


def test_the_grid_is_made_of_settings_that_differ() -> None:
    requests = make_requests(GenerationConfig(), [*REFERENCES, *GRID])
    assert len(requests) == len(REFERENCES) + len(GRID)
    switches = [one.switch for one in requests.values() if one.switch is not None]
    assert {switch.policy for switch in switches} == {"ead", "margin", "bild"}
    assert not any(switch.is_lossless or switch.is_auto for switch in switches)
    assert requests["draft-alone"].method == "plain"


def test_methods_alone_are_compared_without_a_draft_model() -> None:
    assert references_of(["plain", "auto"]) == ("plain", "auto")
    assert references_of(["plain", "bild"]) == REFERENCES


@pytest.mark.e2e
def test_a_frontier_goes_on_and_is_drawn(cli: Cli, small_bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    data, kept = tmp_path / "maths.jsonl", tmp_path / "samples.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in MATHS))
    command = [
        "eval", small_bundle, "--draft", small_bundle, "--task", "gsm8k", "--data", data,
        "-n", 6, "--frontier", "--settings", "ead:threshold=2; ead:threshold=inf", "-o", kept,
    ]  # fmt: skip
    first = cli(*command, "--json", "--limit", 1)
    assert first.exit_code == 0, first.err
    assert first.err.count("this is approximate") == 1
    document = first.json
    labels = [*REFERENCES, "ead:threshold=2.0", "ead:threshold=inf"]
    assert [row["label"] for row in document["settings"]] == labels
    assert [row["lossless"] for row in document["settings"]] == [True, False, True, False, False]
    assert document["frontier"]["references"] == {name: name for name in REFERENCES}
    # Both models are one, so the draft model alone says what plain decoding says.
    assert len({sample["answer"] for sample in document["samples"]}) == 1
    rows = {row["label"]: row for row in document["frontier"]["settings"]}
    assert rows["ead:threshold=inf"]["share_target"] == 0
    assert rows["draft-alone"]["cost_paper"] == rows["ead:threshold=inf"]["cost_paper"] == 1.0
    by_draft = next(one for one in document["samples"] if one["setting"] == "draft-alone")
    assert by_draft["tokens_by_origin"] == {"target": by_draft["n_new_tokens"]}

    picture = tmp_path / "frontier.png"
    again = cli(*command, "--plot", picture)
    assert again.exit_code == 0, again.err
    assert "5 of 10 samples are there already" in again.err
    assert picture.read_bytes().startswith(b"\x89PNG")
    lines = again.out.rstrip().splitlines()
    assert "of lossless auto" in lines[0]
    assert "lossless auto" in lines[-1] or lines[-1].startswith("no verdict")
    alone = cli("eval", "--compare", kept, "--frontier")
    assert alone.out.rstrip().splitlines()[-1] == lines[-1]


@pytest.mark.e2e
def test_a_frontier_needs_two_models_and_answers(
    cli: Cli, small_bundle: Path, tmp_path: Path
) -> None:
    data = tmp_path / "maths.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in MATHS))
    command = ("eval", small_bundle, "--data", data, "--frontier")
    assert "a second, smaller model" in cli(*command, "--task", "gsm8k").error
    assert "leave out the method" in cli(*command, "--task", "perplexity").error
    settings = ("--settings", "plain; draft-alone")
    alone = cli("eval", small_bundle, "--data", data, "--task", "gsm8k", *settings)
    assert "a second, smaller model" in alone.error
