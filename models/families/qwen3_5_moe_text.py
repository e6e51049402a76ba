"""Qwen3.5's mixtures of experts: the layers of Qwen3.5, the experts of Qwen3-Next."""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder, decoder_shapes
from edgedec.models.config import ModelConfig
from edgedec.models.families import qwen2_moe, qwen3_5_text
from edgedec.models.families._gated_delta import (
    delta_draft_layer,
    delta_in_gguf,
    delta_in_hf,
)
from edgedec.models.families._gguf import GgufFacts
from edgedec.models.families._hf import with_defaults
from edgedec.models.families.qwen3_next import gguf_delta_experts, hf_delta_experts
from edgedec.models.fields import Fields
from edgedec.models.weights import Weight

recipe = decoder


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields = with_defaults(fields, num_experts=256, num_experts_per_tok=8)
    return hf_delta_experts(fields, "qwen3_5_moe_text", is_normed=True)


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states."""
    config = gguf_delta_experts(facts, "qwen35moe")
    return qwen3_5_text.tiled(dataclasses.replace(config, family="qwen3_5_moe_text"))


def weights(config: ModelConfig) -> dict[str, Weight]:
    """Returns the shape of each weight and where it lies."""
    return {
        name: qwen2_moe.weight(config, name, shape)
        if ".mlp." in name
        else Weight(shape, hf=delta_in_hf(config, name), gguf=delta_in_gguf(config, name))
        for name, shape in decoder_shapes(config).items()
    }


def draft_layer(config: ModelConfig) -> dict[str, Weight]:
    """Returns the own weights of the layer that publishers add for drafting."""
    return delta_draft_layer(config, weights)
