"""EXAONE 4: norms behind sub-layers and of heads; beside windowed layers, some do not rotate."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.families._gguf import GgufFacts, gguf_decoder, gguf_windowed
from edgedec.models.families._hf import hf_decoder, hf_layer_types, with_defaults
from edgedec.models.families._post_norms import post_norm_weights
from edgedec.models.fields import Fields

recipe = decoder
weights = post_norm_weights

_PERIOD = 4
"""Every so many layers one sees all tokens."""
_LAYERS_OF_32B = 64


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields = with_defaults(
        fields,
        num_key_value_heads=32,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        sliding_window=4096,
        sliding_window_pattern=_PERIOD,
    )
    config = _with_norms(hf_decoder(fields, "exaone4", has_qk_norm=True))
    window = fields.integer("sliding_window", 0, least=0)
    local = hf_layer_types(fields, config.n_layers)
    if local is None:
        local = [_is_local(fields, i, config.n_layers) for i in range(config.n_layers)]
    return _hybrid(config, local, window) if window else config


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states.

    Source: ggml-org/llama.cpp ``src/models/exaone4.cpp`` (MIT): what the header leaves out.
    """
    fields = facts.fields
    config = _with_norms(gguf_decoder(facts, "exaone4", has_qk_norm=True, has_windows=True))
    is_32b = config.n_layers == _LAYERS_OF_32B
    window = fields.integer("exaone4.attention.sliding_window", 4096 if is_32b else 0, least=0)
    pattern = "exaone4.attention.sliding_window_pattern"
    local = gguf_windowed(fields, pattern, config.n_layers, _PERIOD)
    return _hybrid(config, local, window) if window else config


def _is_local(fields: Fields, layer: int, n_layers: int) -> bool:
    """Returns whether a layer has a window, by a number or by letters such as LLLG."""
    letters = fields.get("sliding_window_pattern")
    if isinstance(letters, str):
        return layer < n_layers - 1 and letters[layer % max(len(letters), 1) :][:1] == "L"
    return (layer + 1) % fields.integer("sliding_window_pattern", least=1) != 0


def _with_norms(config: ModelConfig) -> ModelConfig:
    return dataclasses.replace(config, has_pre_norms=False, has_post_norms=True)


def _hybrid(config: ModelConfig, local: Sequence[bool], window: int) -> ModelConfig:
    """Returns ``config`` with windows in some layers, and no rotation in the others."""
    window = window if window < config.max_positions else 0
    layers = tuple(
        dataclasses.replace(config.layer(i), window=window)
        if is_local
        else dataclasses.replace(config.layer(i), rope_theta=0.0)
        for i, is_local in enumerate(local)
    )
    return dataclasses.replace(config, layers=layers)
