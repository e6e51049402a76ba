"""Qwen2's mixtures of experts: the attention of Qwen2, and an expert that all tokens go through."""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder, decoder_shapes
from edgedec.models.config import ModelConfig
from edgedec.models.families import qwen3_moe
from edgedec.models.families._gguf import (
    SHARED_IN_GGUF,
    GgufFacts,
    gguf_decoder,
    gguf_weight,
)
from edgedec.models.families._hf import hf_decoder, hf_optional_windows, with_defaults
from edgedec.models.fields import Fields
from edgedec.models.weights import SourceWeight, Weight

recipe = decoder

_SHARED = {
    "shared_gate": "shared_expert_gate",
    "shared.gate_proj": "shared_expert.gate_proj",
    "shared.up_proj": "shared_expert.up_proj",
    "shared.down_proj": "shared_expert.down_proj",
}
"""Our name within the MLP -> that of Hugging Face."""


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields = with_defaults(
        fields,
        num_key_value_heads=16,
        max_position_embeddings=32768,
        moe_intermediate_size=1408,
        shared_expert_intermediate_size=5632,
        num_experts=60,
        num_experts_per_tok=4,
        qkv_bias=True,
    )
    qwen3_moe.refuse_dense_layers(fields)
    has_bias = fields.flag("qkv_bias")
    config = hf_decoder(fields, "qwen2_moe", has_qkv_bias=has_bias)
    config = dataclasses.replace(
        config,
        intermediate_size=fields.integer("moe_intermediate_size"),
        n_experts=qwen3_moe.hf_experts(fields),
        n_experts_used=fields.integer("num_experts_per_tok", least=1),
        is_routing_normed=fields.flag("norm_topk_prob", False),
        shared_expert_size=fields.integer("shared_expert_intermediate_size", least=1),
    )
    if fields.get("layer_types") is None:
        # Versions of transformers disagree about which layers then have a window.
        fields.refuse("use_sliding_window", False)
        return config
    return hf_optional_windows(fields, config)


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states.

    Source: ggml-org/llama.cpp ``src/models/qwen2moe.cpp`` (MIT): what the header leaves out.
    """
    fields = facts.fields
    config = gguf_decoder(facts, "qwen2moe", has_qkv_bias=True, has_experts=True)
    width = fields.integer("qwen2moe.feed_forward_length", config.intermediate_size)
    if fields.get("qwen2moe.expert_feed_forward_length") is None:
        width_of_one = width // max(config.n_experts_used, 1)
        config = dataclasses.replace(config, intermediate_size=width_of_one)
    shared = fields.integer("qwen2moe.expert_shared_feed_forward_length", width, least=1)
    return dataclasses.replace(
        config, family="qwen2_moe", is_routing_normed=False, shared_expert_size=shared
    )


def weights(config: ModelConfig) -> dict[str, Weight]:
    """Returns the shape of each weight and where it lies."""
    return {name: weight(config, name, shape) for name, shape in decoder_shapes(config).items()}


def weight(config: ModelConfig, name: str, shape: tuple[int, ...]) -> Weight:
    """Returns the ``shape`` of a weight and where it lies."""
    layer, _, part = name.removeprefix("layers.").partition(".mlp.")
    part = part.removesuffix(".weight")
    if (names := _SHARED.get(part)) is None:
        hf, gguf = qwen3_moe.in_hf(config, name), gguf_weight(config, name)
        return Weight(shape, hf=hf, gguf=gguf)
    hf = SourceWeight(f"model.layers.{layer}.mlp.{names}.weight")
    return Weight(shape, hf=hf, gguf=SourceWeight(f"blk.{layer}.{SHARED_IN_GGUF[part]}.weight"))
