"""Which two models may take turns, and what a bundle was tuned to."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from edgedec.models.config import ModelConfig
from edgedec.models.errors import BundleError, ConfigError
from edgedec.runtime.config.switching import SwitchConfig
from edgedec.runtime.decoding.switching.pair import Pair, checked, n_parameters
from edgedec.runtime.decoding.switching.tuned import resolve

CONFIG = ModelConfig(
    family="llama",
    vocab_size=100,
    hidden_size=8,
    intermediate_size=12,
    n_layers=2,
    n_heads=2,
    n_kv_heads=1,
    head_size=4,
    max_positions=64,
    rms_norm_eps=1e-5,
)
TUNED = {
    "draft": "abc",
    "policies": {"ead": SwitchConfig(threshold=1.25, window=3, hysteresis=0.5).to_dict()},
}


def pair(**fields: Any) -> Pair:
    defaults: dict[str, Any] = {
        "tokenizers": ("1" * 64, "1" * 64),
        "target": CONFIG,
        "draft": CONFIG,
        "fingerprint": "abc",
    }
    return Pair(**{**defaults, **fields})


def config(**fields: Any) -> ModelConfig:
    return dataclasses.replace(CONFIG, **fields)


def test_parameters_by_hand() -> None:
    attention = 8 * 8 + 2 * 4 * 8 + 8 * 8
    layer = 8 + attention + 8 + 3 * 8 * 12
    assert n_parameters(CONFIG) == 2 * 100 * 8 + 2 * layer + 8
    assert n_parameters(config(is_head_tied=True)) == 100 * 8 + 2 * layer + 8
    assert pair().size_ratio == 1.0
    assert 0 < pair(draft=config(n_layers=1)).size_ratio < 1


def test_pairs_that_cannot_take_turns() -> None:
    with pytest.raises(ConfigError, match="a second, smaller model: export the bundle with"):
        checked(None)
    with pytest.raises(ConfigError, match=r"SHA-256 1{16} and 2{16}"):
        checked(pair(tokenizers=("1" * 64, "2" * 64)))
    with pytest.raises(ConfigError, match=r"knows 50 of 100 tokens.*--draft-vocabulary all"):
        checked(pair(draft=config(trimmed_head_size=50)))
    with pytest.raises(ConfigError, match="108 logits, the target model 100"):
        checked(pair(draft=config(vocab_size=108)))
    narrow = pair(draft=config(vocab_size=96))
    assert checked(narrow) is narrow


def test_auto_takes_what_was_tuned() -> None:
    asked = SwitchConfig(mode="repair", rollback=2.0)
    found = resolve(asked, TUNED, "abc")
    assert found == dataclasses.replace(asked, threshold=1.25, window=3, hysteresis=0.5)
    for setting in (SwitchConfig(threshold=9.0), SwitchConfig(policy="bild")):
        assert resolve(setting, None, "abc") is setting


@pytest.mark.parametrize(
    ("tuned", "policy", "error", "message"),
    [
        (None, "ead", ConfigError, "never tuned: run `edgedec tune`"),
        (TUNED, "margin", ConfigError, "was tuned for ead, not margin"),
        ({**TUNED, "draft": "xyz"}, "ead", ConfigError, "another draft model"),
        ([], "ead", BundleError, "has no policies"),
        ({"policies": 3}, "ead", BundleError, "has no policies"),
        ({**TUNED, "policies": {"ead": 1}}, "ead", BundleError, "has no ead"),
        ({**TUNED, "policies": {"ead": {}}}, "ead", BundleError, "states no threshold"),
        ({**TUNED, "policies": {"ead": {"colour": 1}}}, "ead", ConfigError, "unknown switch key"),
    ],
)
def test_auto_without_what_it_needs(
    tuned: Any, policy: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        resolve(SwitchConfig(policy=policy), tuned, "abc")
    assert message in str(caught.value)
