"""Gemma 3, its text models: two rotation tables, a window in five layers of six, norms of heads.

EmbeddingGemma is one whose rows all see each other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.families._gguf import GgufFacts, gguf_decoder, gguf_windowed
from edgedec.models.families._hf import (
    hf_decoder,
    hf_layer_types,
    hf_rotations,
    positive,
    with_defaults,
)
from edgedec.models.families._windows import with_local_layers
from edgedec.models.families.gemma2 import ACTIVATION, gguf_query_size, weights, with_gemma
from edgedec.models.fields import Fields

__all__ = ["as_embedder", "read_gguf", "read_hf", "recipe", "weights"]

recipe = decoder

LAYERS_OF_27B = 62
PATTERN = 6
"""Every so many layers one sees all tokens."""
LOCAL_THETA = 10000.0


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    if fields.get("text_config") is not None:
        raise UnsupportedModelError(
            f"{fields.origin}: text_config is there, so the model sees images; only text models "
            f"(gemma3_text) are supported"
        )
    fields.refuse("attention_bias", False)
    fields.refuse("hidden_activation", ACTIVATION)
    fields = with_defaults(
        fields,
        num_key_value_heads=4,
        head_dim=256,
        max_position_embeddings=131072,
        rope_theta=1e6,
        sliding_window=4096,
    )
    fields, local_theta = hf_rotations(fields, fields.number("rope_local_base_freq", LOCAL_THETA))
    config = hf_decoder(fields, "gemma3", has_qk_norm=True, hidden_act=ACTIVATION)
    types = hf_layer_types(fields, config.n_layers)
    pattern = fields.integer("sliding_window_pattern", PATTERN, least=1)
    local = _local_layers(config, pattern) if types is None else types
    config = with_gemma(
        config,
        query_size=positive(fields, "query_pre_attn_scalar", 256.0),
        attention_softcap=0.0,  # transformers reads the key and does nothing with it
        logit_softcap=fields.number("final_logit_softcapping", 0.0),
    )
    window = fields.integer("sliding_window", 0)
    if not fields.flag("use_bidirectional_attention", False):
        return with_local_layers(config, local, window, local_theta)
    return with_local_layers(as_embedder(config), local, window // 2 + 1, local_theta)


def as_embedder(config: ModelConfig) -> ModelConfig:
    """Returns the config of EmbeddingGemma: Gemma 3 whose rows all see each other, headless."""
    return dataclasses.replace(config, stack="embedder", is_head_tied=True, logit_softcap=0.0)


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states.

    Source: ggml-org/llama.cpp ``src/models/gemma3.cpp`` (MIT): what the header leaves out.
    """
    fields = facts.fields
    config = gguf_decoder(facts, "gemma3", has_qk_norm=True, has_windows=True)
    config = with_gemma(
        config,
        query_size=gguf_query_size(config, LAYERS_OF_27B),
        attention_softcap=0.0,
        logit_softcap=fields.number("gemma3.final_logit_softcapping", 0.0),
    )
    local_theta = fields.number("gemma3.rope.freq_base_swa", LOCAL_THETA)
    window = fields.integer("gemma3.attention.sliding_window")
    pattern = "gemma3.attention.sliding_window_pattern"
    local = gguf_windowed(fields, pattern, config.n_layers, PATTERN)
    return with_local_layers(config, local, window, local_theta)


def _local_layers(config: ModelConfig, pattern: int) -> Sequence[bool]:
    return [(i + 1) % pattern != 0 for i in range(config.n_layers)]
