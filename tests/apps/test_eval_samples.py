"""Intervals, comparisons, and files of samples from which a run goes on."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.apps.evaluation.report import make_document, render, with_own_labels
from edgedec.apps.evaluation.samples import Sample, SampleFile, Samples, Setting, read_samples
from edgedec.apps.measuring.intervals import bootstrap, sign_test
from edgedec.models.errors import ConfigError, EdgedecError
from edgedec.runtime.config import GenerationConfig


def mean(means: Any) -> Any:
    return means[0]


def test_the_interval_of_a_share_is_the_binomials() -> None:
    passed = np.array([[1.0] * 30 + [0.0] * 70])
    found = bootstrap(passed, mean)
    assert found is not None
    # Drawing with replacement makes the count of passes binomial.
    chances = [math.comb(100, k) * 0.3**k * 0.7 ** (100 - k) for k in range(101)]
    cumulative = np.cumsum(chances)
    low, high = np.searchsorted(cumulative, 0.025), np.searchsorted(cumulative, 0.975)
    assert found.value == pytest.approx(0.3)
    assert found.low == pytest.approx(low / 100, abs=0.011)
    assert found.high == pytest.approx(high / 100, abs=0.011)


def test_the_interval_of_a_mean_is_the_normals() -> None:
    values = np.random.default_rng(0).normal(5, 2, (1, 900))
    found = bootstrap(values, mean)
    assert found is not None
    half = 1.96 * values.std() / 30
    assert found.low == pytest.approx(values.mean() - half, abs=0.02)
    assert found.high == pytest.approx(values.mean() + half, abs=0.02)


def test_intervals_are_repeatable_and_pairs_stay_together() -> None:
    values = np.random.default_rng(1).random((1, 40))
    assert bootstrap(values, mean) == bootstrap(values, mean)
    assert bootstrap(values, mean) != bootstrap(values, mean, seed=1)
    both = np.concatenate([values, values + 0.25])
    found = bootstrap(both, lambda means: means[1] - means[0])
    assert found is not None
    assert (found.low, found.high) == pytest.approx((0.25, 0.25))


def test_what_has_no_value_has_no_interval() -> None:
    assert bootstrap(np.empty((1, 0)), mean) is None
    assert bootstrap(np.zeros((2, 5)), lambda means: means[1] / means[0]) is None
    some = bootstrap(np.array([[1.0, 0, 0], [1.0, 1, 1]]), lambda means: means[1] / means[0])
    assert some is not None
    assert math.isfinite(some.high)


def test_the_sign_test_counts_all_outcomes() -> None:
    for n in range(1, 9):
        outcomes = [sum(signs) for signs in itertools.product((0, 1), repeat=n)]
        for wins in range(n + 1):
            as_uneven = sum(abs(2 * k - n) >= abs(2 * wins - n) for k in outcomes)
            assert sign_test(wins, n - wins) == pytest.approx(as_uneven / len(outcomes))
    assert sign_test(0, 0) == 1


FACTS = {"task": "human_eval", "data": "d.jsonl", "data_sha256": "ab" * 32, "how": "chat template",
         "bundle": "m", "threads": 2}  # fmt: skip


def setting(label: str, **facts: object) -> Setting:
    return Setting(label, GenerationConfig(), {**FACTS, "request": label, **facts})


def sample(one: Setting, name: object, value: float, key: str = "passed", **more: Any) -> Sample:
    more = {"seconds": 2.0, "decode_s": 1.0, "n_new_tokens": 11, **more}
    return Sample(fingerprint=one.fingerprint, name=str(name), metrics={key: value}, **more)


def held(*samples: Sample) -> Samples:
    found = Samples()
    for one in samples:
        found.add(one)
    return found


def test_fingerprints_depend_on_facts_alone() -> None:
    assert setting("a").fingerprint != setting("b").fingerprint
    assert setting("a").fingerprint != setting("a", threads=1).fingerprint
    renamed = Setting("other", GenerationConfig(max_new_tokens=7), setting("a").facts)
    assert renamed.fingerprint == setting("a").fingerprint


def test_settings_are_compared_over_common_samples() -> None:
    first, other = setting("plain"), setting("ead")
    outcomes = [(1, 1), (1, 0), (0, 1), (0, 0), (1, 0), (1, 0)]
    samples = [sample(first, i, a, answer="x") for i, (a, _) in enumerate(outcomes)]
    samples += [
        sample(other, i, b, seconds=1.0, lossless=False, tokens_by_origin={"draft": 9, "target": 2},
               answer="x" if i == 0 else "y", finish_reason="length" if i == 1 else "stop")
        for i, (_, b) in enumerate(outcomes)
    ]  # fmt: skip
    samples.append(sample(first, "alone", 1))
    document = make_document([first, other], held(*samples), None, {"is_complete": True})
    json.dumps(document, allow_nan=False)
    rows = {row["label"]: row for row in document["settings"]}
    assert rows["plain"]["metrics"]["pass@1"]["value"] == pytest.approx(5 / 7)
    assert rows["plain"]["tokens_per_s"] == pytest.approx(10)
    assert rows["ead"]["seconds_per_sample"] == pytest.approx(1)
    assert rows["ead"]["tokens_by_origin"] == {"draft": 54, "target": 12}
    assert (rows["plain"]["lossless"], rows["ead"]["lossless"]) == (True, False)
    assert rows["ead"]["n_cut_off"] == 1
    (compared,) = document["comparisons"]
    assert compared["n_common"] == 6
    assert (compared["n_wins"], compared["n_losses"], compared["n_ties"]) == (1, 3, 2)
    assert compared["difference"]["value"] == pytest.approx(2 / 6 - 4 / 6)
    assert compared["difference"]["low"] < compared["difference"]["value"]
    assert compared["kept"]["value"] == pytest.approx(0.5)
    assert compared["time_ratio"] == pytest.approx({"value": 0.5, "low": 0.5, "high": 0.5})
    assert compared["p_value"] == pytest.approx(0.625)
    assert compared["n_same_answer"] == 1
    text = render(document)
    assert "ead (approximate)" in text
    assert "1 of 6 answers were cut off" in text
    assert "ead: tokens from draft 81.8%, target 18.2%" in text


def test_samples_not_asked_for_do_not_count() -> None:
    first = setting("plain")
    both = held(sample(first, "a", 1), sample(first, "b", 0))
    document = make_document([first], both, ["a"], {"is_complete": True})
    assert document["settings"][0]["metrics"]["pass@1"]["value"] == 1
    empty = make_document([first], Samples(), ["a"], {"is_complete": False})
    assert empty["settings"][0]["metrics"]["pass@1"] is None
    assert "ended early" in render(empty)


def test_perplexity_weighs_windows_by_their_tokens() -> None:
    one = setting("plain", task="perplexity")
    samples = held(sample(one, 1, 2.0, "nats", weight=300), sample(one, 2, 3.0, "nats", weight=100))
    document = make_document([one], samples, None, {"is_complete": True})
    found = document["settings"][0]["metrics"]
    assert found["perplexity"]["value"] == pytest.approx(math.exp(2.25))
    assert found["bits per token"]["value"] == pytest.approx(2.25 / math.log(2))
    assert found["perplexity"]["low"] >= math.exp(2.0) - 1e-9
    other = setting("more", task="perplexity")
    samples.add(sample(other, 1, 1.0, "nats", weight=300))
    samples.add(sample(other, 2, 4.0, "nats", weight=100))
    compared = make_document([one, other], samples, None, {"is_complete": True})["comparisons"][0]
    assert (compared["n_wins"], compared["n_losses"]) == (1, 1)  # fewer nats are better


@pytest.mark.parametrize(
    "facts", [{"task": "gsm8k"}, {"data_sha256": "cd"}, {"cut": "windows of 4, 2 apart"}]
)
def test_unlike_samples_are_not_compared(facts: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="cannot compare samples of different"):
        make_document([setting("a"), setting("b", **facts)], Samples(), None, {})


def test_settings_of_one_name_are_kept_apart() -> None:
    settings = [
        setting("plain", bundle="small"),
        setting("plain", bundle="large"),
        setting("auto", threads=1),
        setting("auto", threads=2),
        setting("lookup"),
    ]
    labels = [one.label for one in with_own_labels(settings)]
    assert labels[:2] == ["plain small", "plain large"]
    assert labels[2] == f"auto m {settings[2].fingerprint[:6]}"
    assert labels[4] == "lookup"
    assert len(set(labels)) == 5


def test_samples_survive_in_their_file(tmp_path: Path) -> None:
    path, one, two = tmp_path / "s.jsonl", setting("plain"), setting("auto")
    first = sample(one, "ü\u2028", 1, reason=None, answer="é\nx", stats={"n": 1})
    file = SampleFile(path)
    file.begin([one])
    file.add(first)
    assert read_samples(path).of(one.fingerprint) == [first]  # before it is closed
    file.close()
    again = SampleFile(path)
    assert again.held.samples == {(one.fingerprint, "ü\u2028"): first}
    assert again.held.settings[one.fingerprint].facts == one.facts
    again.begin([one, two])
    again.add(sample(two, 2, 0, answer="\ud800"))
    again.close()
    found = read_samples(path)
    assert [s.label for s in found.settings.values()] == ["plain", "auto"]
    assert len(found.samples) == 2


def test_a_torn_line_is_dropped(tmp_path: Path) -> None:
    path, one = tmp_path / "s.jsonl", setting("plain")
    file = SampleFile(path)
    file.begin([one])
    for name in "abc":
        file.add(sample(one, name, 1))
    file.close()
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for end in (last + 1, last + 40, len(whole) - 1):
        path.write_bytes(whole[:end])
        assert [s.name for s in read_samples(path).of(one.fingerprint)] == ["a", "b"]
        file = SampleFile(path)
        file.add(sample(one, "c", 1))
        file.close()
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "line", ["[" * 100_000, "{", "[]", "7",
             '{"kind": "other"}', '{"kind": "setting"}', '{"kind": "sample"}',
             '{"kind": "sample", "name": "a", "fingerprint": "b", "metrics": {}, "more": 1}',
             '{"kind": "sample", "name": 1, "fingerprint": "b", "metrics": {}}']
)  # fmt: skip
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(ConfigError, match=r"s\.jsonl:2: no sample"):
        SampleFile(path)
    assert path.read_text() == f"\n{line}\n"


@pytest.mark.parametrize("text", ["my notes", "my notes\nsome more", "{"])
def test_files_of_others_are_left_alone(tmp_path: Path, text: str) -> None:
    (path := tmp_path / "notes.txt").write_text(text)
    if text == "{":  # as much of a line of ours as a kill may leave
        SampleFile(path).close()
        assert path.read_text() == ""
        return
    with pytest.raises(ConfigError, match=r"not a (file of )?samples? of `edgedec eval`"):
        SampleFile(path)
    assert path.read_text() == text


def test_files_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read samples"):
        read_samples(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="cannot write samples"):
        SampleFile(tmp_path / "no" / "folder.jsonl")
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full here")
    file = SampleFile(None)
    file._path, file._file = full, full.open("wb", buffering=0)
    with pytest.raises(EdgedecError, match="cannot write samples to /dev/full"):
        file.add(sample(setting("a"), 1, 1))
