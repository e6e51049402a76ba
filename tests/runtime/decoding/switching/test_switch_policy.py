"""Switch policies on made-up signals, and what a setting may say."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.switching import SwitchConfig
from edgedec.runtime.decoding.switching.policy import (
    ModelRole,
    RollingPolicy,
    Signal,
    SwitchPolicy,
    make_policy,
)
from edgedec.runtime.sequences.row_stats import RowStats

from .replay import ReplayPolicy

DRAFT, TARGET = ModelRole.DRAFT, ModelRole.TARGET
FINITE = st.floats(0.0, 17.0)


def signal(entropy: float = 0.0, margin: float = 1.0, top_prob: float = 1.0) -> Signal:
    return Signal(entropy, margin, top_prob)


def choices(policy: SwitchPolicy, doubts: list[float]) -> list[ModelRole]:
    """Returns the model of every token, as decoding would ask for them."""
    models = [policy.begin()]
    for doubt in doubts:
        models.append(policy.observe(models[-1], signal(entropy=doubt, margin=1 - doubt)))
    return models


def ead(**fields: Any) -> RollingPolicy:
    return RollingPolicy(SwitchConfig(**fields))


def test_signal_against_float64() -> None:
    logits = np.random.default_rng(0).standard_normal((5, 700)) * 3
    stats = RowStats.of(logits.astype(np.float32))
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for i, row in enumerate(probs):
        found = Signal.of(stats, i)
        first, second = np.sort(row)[::-1][:2]
        assert found.entropy == pytest.approx(-(row * np.log2(row)).sum(), rel=1e-5)
        assert found.top_prob == pytest.approx(first, rel=1e-5)
        assert found.margin == pytest.approx(first - second, rel=1e-4, abs=1e-6)


@given(
    st.lists(FINITE, min_size=1, max_size=80),
    st.integers(1, 9),
    st.integers(1, 9),
    st.floats(0.0, 8.0),
    st.floats(0.1, 1.0),
)
def test_rolling_against_its_definition(
    doubts: list[float], window: int, dwell: int, threshold: float, hysteresis: float
) -> None:
    policy = ead(threshold=threshold, window=window, dwell=dwell, hysteresis=hysteresis)
    found = choices(policy, doubts)
    active, since, has_switched, expected = DRAFT, 0, False, [DRAFT]
    for i in range(len(doubts)):
        mean = math.fsum(doubts[max(0, i + 1 - window) : i + 1]) / min(i + 1, window)
        since += 1
        limit = threshold * (hysteresis if active is TARGET else 1.0)
        wanted = TARGET if mean > limit else DRAFT
        if wanted is not active and since >= (dwell if has_switched else min(dwell, window)):
            active, since, has_switched = wanted, 0, True
        expected.append(active)
    assert found == expected
    assert choices(policy, doubts) == expected  # nothing is left of the output before


@given(st.lists(FINITE, max_size=60), st.integers(1, 9), st.integers(1, 9))
def test_extreme_thresholds_never_switch(doubts: list[float], window: int, dwell: int) -> None:
    def run(threshold: float, policy: str = "ead") -> set[ModelRole]:
        config = SwitchConfig(policy=policy, threshold=threshold, window=window, dwell=dwell)
        return set(choices(make_policy(config), doubts))

    assert run(math.inf) == run(math.inf, "margin") == {DRAFT}
    assert run(-1e-9) == run(-1e-9, "margin") == {TARGET}


@pytest.mark.parametrize("dwell", [1, 3, 5])
def test_dwell_bounds_the_switches(dwell: int) -> None:
    policy = ead(threshold=1.0, window=1, dwell=dwell)
    models = choices(policy, [2.0, 0.0] * 50)
    changes = [i for i in range(1, len(models)) if models[i] is not models[i - 1]]
    assert len(changes) <= 100 / dwell + 1
    assert min(b - a for a, b in pairwise(changes)) >= dwell
    assert len(changes) > 10


def test_hysteresis_damps() -> None:
    doubts = [2.0, *[0.9, 1.1] * 20, 0.5, 0.9]
    free = choices(ead(threshold=1.0, window=1, dwell=1), doubts)
    damped = choices(ead(threshold=1.0, window=1, dwell=1, hysteresis=0.8), doubts)
    assert free.count(DRAFT) == 23
    assert damped[1:-2] == [TARGET] * 41
    assert damped[-2:] == [DRAFT, DRAFT]


def test_window_kept_or_reset() -> None:
    doubts = [0.0, 0.0, 8.0, 0.5, 0.5]
    kept = choices(ead(threshold=1.0, window=4, dwell=1), doubts)
    reset = choices(ead(threshold=1.0, window=4, dwell=1, reset_window=True), doubts)
    assert kept == [DRAFT, DRAFT, DRAFT, TARGET, TARGET, TARGET]
    assert reset == [DRAFT, DRAFT, DRAFT, TARGET, DRAFT, DRAFT]


def test_no_drift_of_the_rolling_mean() -> None:
    values = np.random.default_rng(1).uniform(0, 10, 10_000)
    policy = ead(threshold=math.inf, window=7)
    policy.begin()
    for i, value in enumerate(values):
        policy.observe(DRAFT, signal(entropy=value))
        assert policy.level == pytest.approx(values[max(0, i - 6) : i + 1].mean(), rel=1e-12)


def test_margin_looks_at_the_margin_alone() -> None:
    policy = make_policy(SwitchConfig(policy="margin", threshold=0.5, window=1, dwell=1))
    policy.begin()
    assert policy.observe(DRAFT, signal(entropy=9.0, margin=0.6)) is DRAFT
    assert policy.observe(DRAFT, signal(entropy=0.0, margin=0.4)) is TARGET
    assert not policy.discards


def test_bild_falls_back_for_one_token() -> None:
    policy = make_policy(SwitchConfig(policy="bild", fallback=0.6))
    assert policy.begin() is DRAFT
    assert policy.discards
    assert policy.observe(DRAFT, signal(top_prob=0.61)) is DRAFT
    assert policy.observe(DRAFT, signal(top_prob=0.59)) is TARGET
    assert policy.level == pytest.approx(0.41)
    assert policy.observe(TARGET, signal(top_prob=0.1)) is DRAFT


def test_replay_goes_by_position() -> None:
    policy = ReplayPolicy(DRAFT, [(2, TARGET), (3, DRAFT), (6, TARGET)])
    for _ in range(2):
        found = "".join(str(model)[0] for model in choices(policy, [9.0] * 7))
        assert found == "ddt" + "ddd" + "tt"
    with pytest.raises(ConfigError, match="must rise"):
        ReplayPolicy(DRAFT, [(3, TARGET), (3, DRAFT)])


@pytest.mark.parametrize(
    "text",
    [
        "ead",
        "ead:threshold=1.5,window=7,mode=verify",
        "margin:threshold=inf,hysteresis=0.7,reset_window=true",
        "bild:fallback=0.4,rollback=2.0,max_run=10",
        "ead:threshold=-1.0,dwell=1",
    ],
)
def test_setting_as_text_and_as_json(text: str) -> None:
    setting = SwitchConfig.parse(text)
    assert str(setting) == text
    document = json.loads(json.dumps(setting.to_dict(), allow_nan=False))
    assert SwitchConfig.from_dict(document) == setting
    assert hash(setting) == hash(SwitchConfig.parse(text))
    assert setting.is_lossless == ("verify" in text)


def test_parse_the_full_form() -> None:
    found = SwitchConfig.parse("ead:threshold=1.5,window=5,dwell=5,mode=trust")
    assert found == SwitchConfig(threshold=1.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "policy is '', expected one of ead, margin, bild"),
        ("ead:threshold=high", "threshold is 'high', expected a number or \"auto\""),
        ("ead:threshold=nan", 'threshold is nan, expected a number or "auto"'),
        ("ead:window=0", "window is 0, expected a whole number from 1"),
        ("ead:window=2.5", "window is '2.5', expected a whole number"),
        ("ead:dwell=-1", "dwell is -1"),
        ("ead:hysteresis=0", "hysteresis is 0.0, expected above 0, up to 1"),
        ("ead:hysteresis=1.1", "hysteresis is 1.1"),
        ("ead:mode=guess", "mode is 'guess', expected one of trust, repair, verify"),
        ("ead:reset_window=maybe", "reset_window is 'maybe', expected true or false"),
        ("bild:threshold=1", "bild has none"),
        ("bild:fallback=-0.1", "fallback is -0.1"),
        ("bild:rollback=-1", "rollback is -1.0"),
        ("bild:max_run=65", "max_run is 65, expected a whole number from 1 to 64"),
        ("ead:colour=red", "unknown switch key 'colour'; known: dwell, fallback"),
        ("ead:threshold", "holds 'threshold', expected each name once"),
        ("ead:window=1,window=2", "holds 'window=2', expected each name once"),
        ("ead:policy=bild", "holds 'policy=bild'"),
    ],
)
def test_bad_settings(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SwitchConfig.parse(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_request_with_a_setting() -> None:
    setting = SwitchConfig(threshold=1.0)
    assert GenerationConfig(switch=setting).switch == setting
    fields = {"switch": {"policy": "bild", "rollback": "inf"}}
    read = GenerationConfig.from_dict(fields).switch
    assert read is not None
    assert read.rollback == math.inf
    for name in ("method", "verifier"):
        with pytest.raises(ConfigError, match="switching is a method of its own"):
            GenerationConfig(switch=setting, **{name: "auto"})
    with pytest.raises(ConfigError, match="expected a SwitchConfig or None"):
        GenerationConfig(switch="ead")  # type: ignore[arg-type]
