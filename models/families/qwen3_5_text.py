"""Qwen3.5's text models: gated delta rules in most layers, attention with output gates."""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.families._gated_delta import (
    delta_draft_layer,
    delta_in_gguf,
    delta_in_hf,
    gguf_delta_decoder,
    hf_delta_decoder,
)
from edgedec.models.families._gguf import GgufFacts
from edgedec.models.families._places import placed
from edgedec.models.fields import Fields
from edgedec.models.weights import Weight

recipe = decoder


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    return hf_delta_decoder(fields, "qwen3_5_text", n_kv_heads=4)


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states; its heads of values lie tiled."""
    config = gguf_delta_decoder(facts, "qwen35", has_experts=False)
    return tiled(dataclasses.replace(config, family="qwen3_5_text"))


def tiled(config: ModelConfig) -> ModelConfig:
    """Returns ``config`` with heads of values in the order of Qwen3.5's GGUF files.

    Source: ggml-org/llama.cpp ``conversion/qwen.py`` ``_LinearAttentionVReorderBase`` (MIT).
    """
    recurrence = config.recurrence
    if recurrence.n_heads == recurrence.n_groups:
        return config
    return dataclasses.replace(config, recurrence=dataclasses.replace(recurrence, is_tiled=True))


def draft_layer(config: ModelConfig) -> dict[str, Weight]:
    """Returns the own weights of the layer that publishers add for drafting."""
    return delta_draft_layer(config, weights)


weights = placed(delta_in_hf, delta_in_gguf)
