"""OLMo 2: norms behind the sub-layers instead of before them, and over q and k as wholes."""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.families._gguf import GgufFacts, gguf_decoder, gguf_windowed
from edgedec.models.families._hf import hf_decoder, with_defaults
from edgedec.models.families._post_norms import post_norm_weights
from edgedec.models.families._windows import with_local_layers
from edgedec.models.fields import Fields

recipe = decoder
weights = post_norm_weights

_PERIOD_OF_OLMO3 = 4
"""Every so many layers one sees all tokens."""


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields = with_defaults(fields, rms_norm_eps=1e-5)
    has_bias = fields.flag("attention_bias", False)
    return _with_norms(hf_decoder(fields, "olmo2", has_qk_norm=True, has_qkv_bias=has_bias))


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states; with a window it is an OLMo 3.

    Source: ggml-org/llama.cpp ``src/models/olmo2.cpp`` (MIT): what the header leaves out.
    """
    fields = facts.fields
    config = _with_norms(gguf_decoder(facts, "olmo2", has_qk_norm=True, has_windows=True))
    window = fields.integer("olmo2.attention.sliding_window", 0, least=0)
    pattern = "olmo2.attention.sliding_window_pattern"
    local = gguf_windowed(fields, pattern, config.n_layers, _PERIOD_OF_OLMO3)
    if not window:
        return config
    theta = fields.number("olmo2.rope.freq_base_swa", config.rope_theta)
    return with_local_layers(dataclasses.replace(config, family="olmo3"), local, window, theta)


def _with_norms(config: ModelConfig) -> ModelConfig:
    return dataclasses.replace(
        config, has_pre_norms=False, has_post_norms=True, is_qk_norm_whole=True
    )
