"""A configuration is named by what differs from the defaults."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from edgedec.models.config import LayerConfig, ModelConfig, RopeScaling
from edgedec.models.errors import ConfigError
from edgedec.models.recurrence import Recurrence

TINY = ModelConfig("llama", 10, 8, 16, 2, 2, 1, 4, 64, 1e-5)
RICH = dataclasses.replace(
    TINY,
    rope_theta=5e5,
    rope_scaling=RopeScaling("factors", factors=(1.0, 2.0)),
    has_qk_norm=True,
    layers=(LayerConfig(16, 1e4), LayerConfig(8, 0.0)),
)
REQUIRED = {
    "family", "vocab_size", "hidden_size", "intermediate_size", "n_layers", "n_heads",
    "n_kv_heads", "head_size", "max_positions", "rms_norm_eps",
}  # fmt: skip


def test_defaults_are_left_out() -> None:
    """So a field that comes later changes no name that was made before."""
    assert set(TINY.canonical()) == REQUIRED
    others = {f.name for f in dataclasses.fields(ModelConfig)} - REQUIRED
    for name in others:
        field = ModelConfig.__dataclass_fields__[name]
        assert field.default is not dataclasses.MISSING or callable(field.default_factory)
    assert set(RICH.canonical()) == REQUIRED | {
        "rope_theta", "rope_scaling", "has_qk_norm", "layers",
    }  # fmt: skip
    assert RICH.canonical()["rope_scaling"] == {"kind": "factors", "factors": [1.0, 2.0]}


@pytest.mark.parametrize("config", [TINY, RICH])
def test_what_is_left_reads_back(config: ModelConfig) -> None:
    assert ModelConfig.from_dict(json.loads(json.dumps(config.canonical()))) == config


def test_layers_without_values_of_their_own() -> None:
    assert TINY.layer(1) == LayerConfig(16, 1e4)
    assert RICH.layer(1) == LayerConfig(8, 0.0)


@pytest.mark.parametrize(
    "layer", [(0, 1e4), (2.5, 1e4), (16, -1.0), (16, float("nan")), (16, float("inf"))]
)
def test_layers_that_make_no_sense(layer: tuple[int, float]) -> None:
    with pytest.raises(ConfigError, match="of a layer is"):
        LayerConfig(*layer)


def test_layers_with_attention_a_recurrence_both_or_neither() -> None:
    layers = (
        LayerConfig(16, 1e4, mixer="both"),
        LayerConfig(16, 1e4, mixer="none"),
        LayerConfig(16, 1e4, has_mlp=False),
        LayerConfig(16, 1e4, mixer="recurrence"),
    )
    own = Recurrence("short_conv", conv_size=3, n_channels=8)
    config = dataclasses.replace(TINY, n_layers=4, layers=layers, recurrence=own)
    assert config.recurrent_layers == (0, 3)
    assert config.kv_layers == (0, 2)
    assert config.n_kv_numbers == 2 * 2 * config.n_kv_heads * config.head_size
    assert ModelConfig.from_dict(json.loads(json.dumps(config.canonical()))) == config


@pytest.mark.parametrize("mixer", ["none", "recurrence"])
def test_models_without_attention(mixer: Any) -> None:
    layers = (LayerConfig(16, 1e4, mixer=mixer),) * 2
    own = Recurrence("short_conv", conv_size=3, n_channels=8) if mixer != "none" else Recurrence()
    with pytest.raises(ConfigError, match="no layer has attention"):
        dataclasses.replace(TINY, layers=layers, recurrence=own)


def test_words_that_are_none_of_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="mixer of a layer is 'x', expected attention or"):
        LayerConfig(16, 1e4, mixer="x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="gated_norm is 'x', expected one of last"):
        Recurrence(gated_norm="x")  # type: ignore[arg-type]
