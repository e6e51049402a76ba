"""SmolLM3: the Llama recipe; some layers rotate nothing (NoPE)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.families import llama
from edgedec.models.families._gguf import GgufFacts, gguf_decoder
from edgedec.models.families._hf import hf_decoder, hf_windows, with_defaults, with_windows
from edgedec.models.fields import Fields

recipe = decoder
weights = llama.weights

_STRIDE = 4
"""Every fourth layer rotates nothing; GGUF files do not state it."""


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields = with_defaults(
        fields, rope_theta=2e6, num_key_value_heads=4, max_position_embeddings=32768
    )
    has_bias = fields.flag("attention_bias", False)
    config = hf_decoder(fields, "smollm3", has_qkv_bias=has_bias)
    rotates = _rotating_layers(config.n_layers, fields.integer("no_rope_layer_interval", _STRIDE))
    if fields.get("no_rope_layers") is not None:  # which, in spite of its name, says who rotates
        rotates = [bool(flag) for flag in fields.integers("no_rope_layers", least=0, most=1)]
        if len(rotates) != config.n_layers:
            fields.fail("no_rope_layers", rotates, f"a list of {config.n_layers}")
    config = _without_rotation(config, rotates)
    if fields.get("layer_types") is not None:
        return hf_windows(fields, config)
    if not fields.flag("use_sliding_window", False):
        return config
    still = [i for i, turns in enumerate(rotates) if not turns]
    return with_windows(config, fields.integer("sliding_window", 0), still)


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states.

    Source: ggml-org/llama.cpp ``src/models/smollm3.cpp`` (MIT): which layers rotate.
    """
    config = gguf_decoder(facts, "smollm3")
    return _without_rotation(config, _rotating_layers(config.n_layers, _STRIDE))


def _rotating_layers(n_layers: int, stride: int) -> list[bool]:
    return [(i + 1) % max(stride, 1) != 0 for i in range(n_layers)]


def _without_rotation(config: ModelConfig, rotates: Sequence[bool]) -> ModelConfig:
    if all(rotates):
        return config
    layers = tuple(
        dataclasses.replace(config.layer(i), rope_theta=config.rope_theta if turns else 0.0)
        for i, turns in enumerate(rotates)
    )
    return dataclasses.replace(config, layers=layers)
