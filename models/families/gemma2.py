"""Gemma 2: soft caps, norms around sub-layers, scaled embeddings, a window in every other layer."""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.families._gguf import GgufFacts, gguf_decoder, gguf_windowed
from edgedec.models.families._hf import (
    hf_decoder,
    hf_windows,
    positive,
    with_defaults,
    with_windows,
)
from edgedec.models.families._post_norms import post_norm_weights
from edgedec.models.fields import Fields
from edgedec.models.weights import Weight

recipe = decoder

ACTIVATION = "gelu_pytorch_tanh"
_LAYERS_OF_27B = 46


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    has_bias = fields.flag("attention_bias", False)
    fields.refuse("hidden_activation", ACTIVATION)
    fields = with_defaults(
        fields,
        num_key_value_heads=4,
        head_dim=256,
        max_position_embeddings=8192,
        sliding_window=4096,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
    )
    config = hf_decoder(fields, "gemma2", has_qkv_bias=has_bias, hidden_act=ACTIVATION)
    if fields.get("layer_types") is not None:
        config = hf_windows(fields, config)
    else:
        config = _with_windows(config, fields.integer("sliding_window", 0))
    return with_gemma(
        config,
        query_size=positive(fields, "query_pre_attn_scalar", 256.0),
        attention_softcap=fields.number("attn_logit_softcapping", 0.0),
        logit_softcap=fields.number("final_logit_softcapping", 0.0),
    )


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states.

    Source: ggml-org/llama.cpp ``src/models/gemma2.cpp`` (MIT): what the header leaves out.
    """
    fields = facts.fields
    config = gguf_decoder(facts, "gemma2", has_windows=True)
    window = fields.integer("gemma2.attention.sliding_window", 4096)
    local = gguf_windowed(fields, "gemma2.attention.sliding_window_pattern", config.n_layers, 2)
    config = with_windows(config, window, [i for i, here in enumerate(local) if here])
    return with_gemma(
        config,
        query_size=gguf_query_size(config, _LAYERS_OF_27B),
        attention_softcap=fields.number("gemma2.attn_logit_softcapping", 50.0),
        logit_softcap=fields.number("gemma2.final_logit_softcapping", 30.0),
    )


def weights(config: ModelConfig) -> dict[str, Weight]:
    """Returns the shape of each weight and where it lies."""
    return post_norm_weights(config, hf_norm_offset=1.0)


def with_gemma(
    config: ModelConfig, query_size: float, attention_softcap: float, logit_softcap: float
) -> ModelConfig:
    """Returns ``config`` with what all of Gemma shares.

    query_size: products of q and k are divided by its square root.
    """
    return dataclasses.replace(
        config,
        activation="gelu_tanh",
        has_post_norms=True,
        embedding_scale=config.hidden_size**0.5,
        attention_scale=query_size**-0.5,
        attention_softcap=attention_softcap,
        logit_softcap=logit_softcap,
    )


def gguf_query_size(config: ModelConfig, n_layers_of_27b: int) -> float:
    """Returns ``query_size``, which few GGUF files state: the largest model has another."""
    if config.attention_scale:
        return config.attention_scale**-2
    if config.n_layers == n_layers_of_27b:
        return config.hidden_size / config.n_heads
    return config.head_size


def _with_windows(config: ModelConfig, window: int) -> ModelConfig:
    return with_windows(config, window, range(0, config.n_layers, 2))
