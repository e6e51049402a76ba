"""Qwen3-Next: gated delta rules in most layers, mixtures of experts with one for all tokens."""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder, decoder_shapes
from edgedec.models.config import ModelConfig
from edgedec.models.errors import CheckpointError
from edgedec.models.families import qwen2_moe, qwen3_moe
from edgedec.models.families._gated_delta import (
    delta_draft_layer,
    delta_in_gguf,
    delta_in_hf,
    gguf_delta_decoder,
    hf_delta_decoder,
)
from edgedec.models.families._gguf import GgufFacts, layer_part
from edgedec.models.families._hf import with_defaults
from edgedec.models.fields import Fields
from edgedec.models.weights import GroupedRows, SourceWeight, Weight

recipe = decoder


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    qwen3_moe.refuse_dense_layers(fields)
    fields = with_defaults(fields, num_experts=512, num_experts_per_tok=10)
    is_normed = fields.flag("norm_topk_prob", True)
    return hf_delta_experts(fields, "qwen3_next", is_normed)


def hf_delta_experts(fields: Fields, family: str, is_normed: bool) -> ModelConfig:
    """Returns the config of a ``family`` with experts in all layers.

    is_normed: whether the weights of those chosen sum to 1.
    """
    width = fields.integer("moe_intermediate_size", 512, least=1)
    fields = Fields({**fields.values, "intermediate_size": width}, fields.origin, CheckpointError)
    config = hf_delta_decoder(fields, family, n_kv_heads=2)
    return dataclasses.replace(
        config,
        n_experts=qwen3_moe.hf_experts(fields),
        n_experts_used=fields.integer("num_experts_per_tok", least=1),
        is_routing_normed=is_normed,
        shared_expert_size=fields.integer("shared_expert_intermediate_size", 512, least=1),
    )


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states."""
    return dataclasses.replace(gguf_delta_experts(facts, "qwen3next"), family="qwen3_next")


def gguf_delta_experts(facts: GgufFacts, architecture: str) -> ModelConfig:
    """Returns the config of an ``architecture`` with experts in all layers."""
    config = gguf_delta_decoder(facts, architecture, has_experts=True)
    shared = facts.fields.integer(f"{architecture}.expert_shared_feed_forward_length", least=1)
    return dataclasses.replace(config, shared_expert_size=shared)


def weights(config: ModelConfig) -> dict[str, Weight]:
    """Returns the shape of each weight and where it lies."""
    return {
        name: qwen2_moe.weight(config, name, shape)
        if ".mlp." in name
        else Weight(shape, hf=_in_hf(config, name), gguf=_in_gguf(config, name))
        for name, shape in decoder_shapes(config).items()
    }


def draft_layer(config: ModelConfig) -> dict[str, Weight]:
    """Returns the own weights of the layer that publishers add for drafting."""
    return delta_draft_layer(config, weights)


def _in_hf(config: ModelConfig, name: str) -> SourceWeight:
    recurrence = config.recurrence
    each = recurrence.n_heads // max(recurrence.n_groups, 1)
    values = each * recurrence.head_size
    parts = {
        "x_proj": ("qkvz", (0, 1, 2)), "z_proj": ("qkvz", (3,)),
        "b_proj": ("ba", (0,)), "dt_proj": ("ba", (1,)),
    }  # fmt: skip
    stem = name.removesuffix(".weight").rpartition(".mixer.")[2]
    if stem not in parts:
        return delta_in_hf(config, name)
    tensor, chosen = parts[stem]
    sizes = (
        (recurrence.state_size, recurrence.state_size, values, values)
        if tensor == "qkvz"
        else (each, each)
    )
    return SourceWeight(
        f"model.layers.{layer_part(name)[0]}.linear_attn.in_proj_{tensor}.weight",
        grouped=GroupedRows(recurrence.n_groups, sizes, chosen),
    )


def _in_gguf(config: ModelConfig, name: str) -> SourceWeight:
    recurrence = config.recurrence
    stem = name.removesuffix(".weight").rpartition(".mixer.")[2]
    if stem not in ("b_proj", "dt_proj"):
        return delta_in_gguf(config, name)
    each = recurrence.n_heads // recurrence.n_groups
    grouped = GroupedRows(recurrence.n_groups, (each, each), (int(stem == "dt_proj"),))
    return SourceWeight(f"blk.{layer_part(name)[0]}.ssm_ba.weight", grouped=grouped)
