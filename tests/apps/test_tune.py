"""`edgedec tune`: settings on paper against real switching, the choice, the file, the bundle."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.apps.tune import runs as tune_runs
from edgedec.apps.tune.catch_up import CatchUpCost, measure_catch_up
from edgedec.apps.tune.report import ThresholdChoice, choose, rows_of, with_tuned
from edgedec.apps.tune.runs import PLAIN, REFERENCES, TuningJob
from edgedec.apps.tune.runs import record as record_traces
from edgedec.apps.tune.state import MeasuredRun, TuneState
from edgedec.apps.tune.sweep import Costs, Expected, around, candidates, expect, frontier
from edgedec.apps.tune.traces import Trace, predictions
from edgedec.export.manifest_change import change_manifest
from edgedec.models.bundle_files import FileEntry, file_sha256
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import TUNED_KEY, read_manifest
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.switching import SwitchConfig
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.decoding.switching.policy import Signal
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.rows import Rows

from ..runtime.conftest import ToyModel, ToySession
from ..runtime.decoding.switching.switch_toys import Row, draft_toy, rule, switched, target_toy
from ..runtime.draft_toys import PROMPT, VOCAB, generate

Cli = Callable[..., Any]
COSTS = Costs(
    draft=CostTable({m: 3.0 + m for m in (1, 2, 4, 64)}),
    target=CostTable({m: 10.0 + 2 * m for m in (1, 2, 4, 64)}),
)


def calmer(prefix: Sequence[int]) -> Row:
    """Returns logits with the target toy's choice but doubts of their own."""
    row = rule(VOCAB, 0.0)(prefix)
    return row * np.float32(0.4 + 0.9 * np.random.default_rng([9, *prefix[-2:]]).random())


def record(draft: ToySession, n_tokens: int = 80) -> Trace:
    target = target_toy()
    config = GenerationConfig(max_new_tokens=n_tokens)
    text = [*PROMPT, *generate(target, PROMPT, config).token_ids]
    return Trace.record(text, len(PROMPT), target, draft)


@pytest.mark.parametrize(
    "setting",
    [
        "ead:threshold=2.2,window=3,dwell=2",
        "ead:threshold=2.5,window=1,dwell=1,hysteresis=0.7",
        "margin:threshold=0.6,window=4,dwell=3",
        "bild:fallback=0.5,mode=trust",
        "ead:threshold=inf",
        "ead:threshold=-1",
    ],
)
def test_paper_equals_switching_where_both_models_choose_alike(setting: str) -> None:
    trace = record(ToySession(VOCAB, 256, calmer))
    assert all(trace.agrees)
    found = expect(SwitchConfig.parse(setting), [trace], COSTS)
    config = GenerationConfig(max_new_tokens=80)
    toy = ToySession(VOCAB, 256, calmer)
    result, target, draft = switched(setting, config, draft=toy, copies=False)
    assert found.share_target == result.switch["share_target"]
    assert found.agreement == 1.0
    if "inf" not in setting and "-1" not in setting:
        assert 0.1 < found.share_target < 0.9
    # Each pass costs 3 or 10 and each row 1 or 2; those up to the first row are the prompt's.
    passes = {"draft": max(draft.n_passes - 1, 0), "target": target.n_passes - 1}
    rows = {name: s.n_rows - len(PROMPT) for name, s in (("draft", draft), ("target", target))}
    rows["draft"] = max(rows["draft"], 0)
    total = 3 * passes["draft"] + rows["draft"] + 10 * passes["target"] + 2 * rows["target"]
    assert found.ms_per_token * 80 == pytest.approx(total)


def test_agreement_counts_the_draft_models_tokens() -> None:
    trace = record(draft_toy())
    share = sum(trace.agrees) / len(trace)
    assert 0.2 < share < 0.95
    assert expect(SwitchConfig(threshold=math.inf), [trace], COSTS).agreement == share
    assert expect(SwitchConfig(threshold=-1.0), [trace], COSTS).agreement == 1.0


def test_predictions_are_those_of_single_passes() -> None:
    session = target_toy(400)
    text = [*PROMPT, *np.random.default_rng(3).integers(0, VOCAB, 150).tolist()]
    found = predictions(session, text, len(PROMPT))
    assert len(found) == 150
    for i, prediction in enumerate(found, len(PROMPT)):
        row = rule(VOCAB, 0.0)(text[:i]).astype(np.float64)
        probs = np.exp(row) / np.exp(row).sum()
        assert prediction.token == row.argmax()
        assert prediction.signal.top_prob == pytest.approx(probs.max(), rel=1e-5)


def test_catching_up_is_measured_over_the_same_tokens() -> None:
    clock = 0.0
    passes: list[int] = []

    class TimedModel(ToyModel):
        def rows_of(self, wanted: Pass) -> Rows:
            nonlocal clock
            passes.append(len(wanted.tree))
            clock += 0.010 + 0.001 * len(wanted.tree)
            return super().rows_of(wanted)

    session = ToySession(VOCAB, context=200, model=TimedModel(VOCAB))
    found = measure_catch_up(session, repetitions=2, clock=lambda: clock)
    assert found is not None
    assert (found.n_tokens, found.pass_ms) == (32, pytest.approx(10 + 32))
    assert found.steps_ms == pytest.approx(32 * 11)
    assert found.of_steps == pytest.approx(42 / 352)
    assert passes.count(32) == 3
    assert session.n_tokens == 0
    assert measure_catch_up(ToySession(VOCAB, context=100)) is None


def test_candidates_cover_the_doubts_of_the_trace() -> None:
    trace = record(draft_toy())
    for policy in ("ead", "margin"):
        tried = [expect(setting, [trace], COSTS) for setting in candidates(policy, [trace])]
        assert len({str(one.setting) for one in tried}) == len(tried) > 200
        shares = [one.share_target for one in tried]
        assert min(shares) < 0.15
        assert max(shares) > 0.8
        best = frontier(tried)
        assert len(best) > 3
        assert all(one.setting.policy == policy for one in best)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=30),
    st.floats(0, 1),
)
def test_frontier_and_what_is_run_of_it(points: list[tuple[int, int]], keep: float) -> None:
    found = [
        Expected(SwitchConfig(threshold=float(i)), a / 20, 0.5, float(ms))
        for i, (a, ms) in enumerate(points)
    ]
    best = frontier(found)
    for one in found:  # nothing is left out that no other beats
        is_beaten = any(
            (b.agreement >= one.agreement and b.ms_per_token <= one.ms_per_token) for b in best
        )
        assert is_beaten
    assert [b.agreement for b in best] == sorted({b.agreement for b in best})
    chosen = around(best, keep)
    assert 1 <= len(chosen) <= 3
    assert set(chosen) <= set(best)
    cheapest = [b for b in best if b.agreement >= keep]
    assert (cheapest[0] if cheapest else best[-1]) in chosen


def expected(threshold: float, agreement: float, ms: float, policy: str = "ead") -> Expected:
    return Expected(SwitchConfig(policy=policy, threshold=threshold), agreement, 0.4, ms)


def measured(ms: float, n_chosen: int) -> MeasuredRun:
    return MeasuredRun(n_tokens=11, ms=ms, n_target=4, n_chosen=n_chosen)


def test_choice_is_the_fastest_that_agrees_enough() -> None:
    options = [expected(1.0, 0.9, 5.0), expected(0.5, 0.98, 7.0), expected(0.1, 0.99, 9.0)]
    by_paper = rows_of(options, [])
    assert choose(by_paper, "ead", 0.97) == by_paper[1]
    assert choose(by_paper, "ead", 0.999) == by_paper[2]
    assert choose(by_paper, "margin", 0.5) is None
    names = [str(one.setting) for one in options]
    found = dict.fromkeys(REFERENCES, measured(200.0, 11))
    found |= dict(zip(names, [measured(100, 11), measured(90, 10), measured(80, 9)], strict=True))
    rows = rows_of(options, [found, found])
    assert [row.name for row in rows] == [*REFERENCES, *names]
    assert choose(rows, "ead", 0.97) == rows[-3]  # what ran counts, not what was promised
    assert choose(rows, "ead", 0.9) == rows[-2]
    assert choose(rows, "ead", 0.999).name == names[0]  # type: ignore[union-attr]
    assert rows[-3].agreement == 1.0
    assert rows[-3].share_target == pytest.approx(4 / 11)
    assert rows[-3].ms_per_token == pytest.approx(10.0)
    assert rows[-3].speedup == pytest.approx(2.0)
    assert rows[0].speedup == 1.0


def test_state_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    state = TuneState.open("abc", is_fresh=False)
    assert not state.traces
    state.costs = {"draft": {1: 2.0, 8: 3.5}}
    state.catch_up = CatchUpCost(32, 90.0, 750.0)
    state.traces["a"] = Trace((Signal(1.0, 0.5, 0.25),), (Signal(0.0, 1.0, 1.0),), (True,))
    state.rounds["a"] = {PLAIN: measured(3.0, 11)}
    state.save()
    again = TuneState.open("abc", is_fresh=False)
    assert (again.costs, again.traces, again.rounds) == (state.costs, state.traces, state.rounds)
    assert again.catch_up == state.catch_up
    assert again.complete_rounds({PLAIN}) == [state.rounds["a"]]
    assert again.complete_rounds({PLAIN, "auto"}) == []
    assert not TuneState.open("abc", is_fresh=True).traces
    assert not TuneState.open("other", is_fresh=False).traces
    for damage in ("", "[]", '{"costs": 3}', state.path.read_text()[:-20]):
        state.path.write_text(damage)
        assert not TuneState.open("abc", is_fresh=False).traces
    assert [path.name for path in state.path.parent.iterdir()] == ["abc.json"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write"):
        TuneState(tmp_path / "file" / "below" / "state.json").save()


def own_copy(bundle: Path, folder: Path) -> Path:
    """Returns a copy of ``bundle`` that shares its files' bytes."""
    for path in bundle.rglob("*"):
        if path.is_file():
            copy = folder / path.relative_to(bundle)
            copy.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, copy)
    return folder


@pytest.mark.e2e
def test_tune_and_run_auto(cli: Cli, small_bundle: Path, tmp_path: Path) -> None:
    """The model is its own draft model here, so all agree whatever is chosen."""
    bundle = own_copy(small_bundle, tmp_path / "own.edgedec")
    before = read_manifest(bundle)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Name a colour."}\n{"prompt": "Count to five."}\n')
    pair = ("--draft", small_bundle, "--threads", 2)
    asked = ("run", bundle, "Hello", *pair, "-n", 6, "--switch", "ead")
    assert "never tuned: run `edgedec tune`" in cli(*asked).error
    command = ("tune", bundle, *pair, "--prompts", prompts, "--max-new-tokens", 8, "--keep", 0)
    found = cli(*command, "--minutes", 2, "--json")
    assert found.exit_code == 0, found.err
    assert (found.json["n_prompts_recorded"], found.json["n_prompts_run"]) == (2, 2)
    assert all(row["agreement"] == 1.0 for row in found.json["settings"])
    assert found.json["catch_up"]["n_tokens"] == 32
    assert found.json["catch_up"]["of_steps"] > 0
    after = read_manifest(bundle)
    tuned = after.defaults[TUNED_KEY]
    assert set(tuned["policies"]) == {"ead", "margin"}
    assert tuned["evidence"]["ead"]["n_prompts_run"] == 2
    assert tuned["evidence"]["ead"]["catch_up"] == found.json["catch_up"]
    assert (after.files, after.models) == (before.files, before.models)
    assert after.defaults.items() >= before.defaults.items()
    outcome = cli(*asked, "--json")
    reported = outcome.json["switch"]["setting"]
    assert {key: reported[key] for key in tuned["policies"]["ead"]} == tuned["policies"]["ead"]
    assert outcome.json["lossless"] is False
    assert outcome.err.count("this is approximate") == 1
    resumed = cli(*command, "--minutes", 0.2, "--policy", "ead", "--dry-run")
    assert "2 recorded texts and 2 rounds are known already" in resumed.err
    assert "catching up 32 tokens takes the target model" in resumed.err
    assert read_manifest(bundle).defaults == after.defaults


@pytest.mark.e2e
def test_interrupt_keeps_what_was_found(
    cli: Cli, small_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = own_copy(small_bundle, tmp_path / "own.edgedec")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Name a river."}\n{"prompt": "Count to six."}\n')
    record_some, n_recorded = tune_runs._record, 0

    def interrupted(*arguments: Any) -> None:
        nonlocal n_recorded
        if n_recorded == 1:
            raise KeyboardInterrupt
        n_recorded += 1
        record_some(*arguments)

    monkeypatch.setattr(tune_runs, "_record", interrupted)
    command = ("tune", bundle, "--draft", small_bundle, "--threads", 2, "--prompts", prompts)
    found = cli(*command, "--max-new-tokens", 24, "--parallel", 1, "--json")
    assert found.exit_code == 130
    assert (found.json["n_prompts_recorded"], found.json["n_prompts_run"]) == (1, 0)
    assert "the choice rests on" not in found.out
    assert set(read_manifest(bundle).defaults[TUNED_KEY]["policies"]) == {"ead", "margin"}


@pytest.mark.e2e
def test_texts_written_side_by_side_are_recorded_as_those_written_alone(
    small_bundle: Path, tmp_path: Path
) -> None:
    texts = {"a": "Name a river.", "b": "Count to six.", "c": "What is a prime?"}
    found = []
    with load(small_bundle, EngineOptions(threads=2, draft=small_bundle)) as engine:
        prompts = {name: engine.encode(text) for name, text in texts.items()}
        for parallel in (1, 2):
            costs = {"draft": {1: 1.0}, "target": {1: 2.0}}
            state = TuneState(tmp_path / f"{parallel}.json", costs=costs)
            record_traces(TuningJob(engine, prompts, 8, state, math.inf, parallel), math.inf)
            found.append(state.traces)
    assert list(found[0]) == ["a", "b", "c"]
    assert found[0] == found[1]


@pytest.mark.e2e
def test_what_cannot_be_tuned(cli: Cli, small_bundle: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Hi"}\n{"prompt": \n')
    assert "name a file of prompts" in cli("tune", small_bundle).error
    command = ("tune", small_bundle, "--prompts", prompts)
    assert "prompts.jsonl:2: not valid JSON" in cli(*command).error
    prompts.write_text('{"prompt": "Hi"}\n')
    assert "a second, smaller model" in cli(*command).error
    assert "expected ead or margin" in cli(*command, "--policy", "bild").error
    assert "cannot read prompts" in cli("tune", small_bundle, "--prompts", "no").error


def choice(policy: str, threshold: float) -> ThresholdChoice:
    return ThresholdChoice(SwitchConfig(policy=policy, threshold=threshold), {"n": threshold})


def test_what_others_wrote_into_a_manifest_stays(tmp_path: Path, small_bundle: Path) -> None:
    bundle = own_copy(small_bundle, tmp_path / "own.edgedec")
    before = read_manifest(bundle)

    def tuned(choices: list[ThresholdChoice], draft: str) -> tuple[str, dict[str, float]]:
        change_manifest(bundle, before, lambda now: with_tuned(now, choices, draft))
        found = read_manifest(bundle).defaults[TUNED_KEY]
        assert found["evidence"].keys() == found["policies"].keys()
        thresholds = {name: fields["threshold"] for name, fields in found["policies"].items()}
        return found["draft"], thresholds

    assert tuned([choice("ead", 1.5)], "abc") == ("abc", {"ead": 1.5})
    assert tuned([choice("margin", 0.5)], "abc") == ("abc", {"ead": 1.5, "margin": 0.5})
    # What was found with another draft model goes.
    assert tuned([choice("ead", 0.7)], "xyz") == ("xyz", {"ead": 0.7})
    original = json.loads((small_bundle / "manifest.json").read_text())
    assert TUNED_KEY not in original["defaults"]  # the linked file was replaced, not written into


def test_the_manifest_of_another_export_stays(tmp_path: Path, small_bundle: Path) -> None:
    bundle = own_copy(small_bundle, tmp_path / "own.edgedec")
    known = read_manifest(bundle)
    graph = bundle / known.target.graph
    content = graph.read_bytes()
    graph.unlink()
    graph.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    files = {**known.files, known.target.graph: FileEntry(len(content), file_sha256(graph))}
    text = json.dumps(dataclasses.replace(known, files=files).to_dict())
    (bundle / "manifest.json").unlink()
    (bundle / "manifest.json").write_text(text)
    with pytest.raises(ConfigError, match="was exported anew meanwhile"):
        change_manifest(bundle, known, lambda now: now)
    assert (bundle / "manifest.json").read_text() == text
