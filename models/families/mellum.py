"""Mellum 2: Qwen3's mixture of experts with windows, whose layers no RoPE scaling stretches."""

from __future__ import annotations

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.families._gguf import GgufFacts, gguf_decoder, gguf_windowed
from edgedec.models.families._hf import hf_layer_types, hf_rotations, hf_window, with_defaults
from edgedec.models.families._windows import with_local_layers
from edgedec.models.families.qwen3_moe import hf_mixture, weights
from edgedec.models.fields import Fields

__all__ = ["read_gguf", "read_hf", "recipe", "weights"]

recipe = decoder

_PERIOD = 4
"""Every so many layers one sees all tokens, where a GGUF file does not list them."""


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states.

    Source: transformers ``configuration_mellum.py``.
    """
    fields, local_theta = hf_rotations(fields, 1e4)
    fields = with_defaults(
        fields,
        num_key_value_heads=4,
        head_dim=128,
        max_position_embeddings=131072,
        moe_intermediate_size=896,
        num_experts=64,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        rope_theta=5e5,
        sliding_window=1024,
    )
    fields.refuse("use_sliding_window", True)
    config = hf_mixture(fields, "mellum")
    _refuse_dense_layers(fields)
    local = hf_layer_types(fields, config.n_layers) or [False] * config.n_layers
    return with_local_layers(config, local, hf_window(fields, local), local_theta)


def _refuse_dense_layers(fields: Fields) -> None:
    if "dense" in (fields.optional("mlp_layer_types", fields.texts) or ()):
        raise UnsupportedModelError(
            f"{fields.origin}: mlp_layer_types is 'dense' somewhere, only 'sparse' is supported"
        )


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states.

    Source: ggml-org/llama.cpp ``src/models/mellum.cpp`` (MIT): what the header leaves out.
    """
    fields = facts.fields
    config = gguf_decoder(facts, "mellum", has_qk_norm=True, has_windows=True, has_experts=True)
    window = fields.integer("mellum.attention.sliding_window", 0, least=0)
    pattern = "mellum.attention.sliding_window_pattern"
    local = gguf_windowed(fields, pattern, config.n_layers, _PERIOD)
    theta = fields.number("mellum.rope.freq_base_swa", config.rope_theta)
    return with_local_layers(config, local, window, theta) if window else config
