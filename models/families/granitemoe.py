"""Granite 3's mixtures of experts: Granite with a router over MLPs that are stored stacked."""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.families import llama
from edgedec.models.families._gguf import GgufFacts, gguf_decoder
from edgedec.models.families._hf import hf_decoder, with_defaults
from edgedec.models.families.granite import gguf_multipliers, hf_multipliers
from edgedec.models.fields import Fields, shown
from edgedec.models.weights import SourceWeight, Weight

recipe = decoder


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields = with_defaults(
        fields, num_local_experts=8, num_experts_per_tok=2, position_embedding_type="rope"
    )
    if fields.values["position_embedding_type"] != "rope":  # null, too
        raise UnsupportedModelError(
            f"{fields.origin}: position_embedding_type is "
            f"{shown(fields.values['position_embedding_type'])}, only 'rope' is supported"
        )
    has_bias = fields.flag("attention_bias", False)
    config = hf_multipliers(fields, hf_decoder(fields, "granitemoe", has_qkv_bias=has_bias))
    return dataclasses.replace(
        config,
        n_experts=fields.integer("num_local_experts", least=1),
        n_experts_used=fields.integer("num_experts_per_tok", least=1),
    )


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states."""
    return gguf_multipliers(facts.fields, gguf_decoder(facts, "granitemoe", has_experts=True))


def weights(config: ModelConfig) -> dict[str, Weight]:
    """Returns the shape of each weight and where it lies."""
    return {
        name: dataclasses.replace(weight, hf=_in_hf(config, name) or weight.hf)
        for name, weight in llama.weights(config).items()
    }


def _in_hf(config: ModelConfig, name: str) -> SourceWeight | None:
    """Returns where a weight of the MLP lies: gate and up are one tensor."""
    layer, _, own = name.removeprefix("layers.").partition(".mlp.")
    stem, inner = f"model.layers.{layer}.block_sparse_moe", config.intermediate_size
    joined = f"{stem}.input_linear.weight"
    return {
        "router.weight": SourceWeight(f"{stem}.router.layer.weight"),
        "experts.gate_proj.weight": SourceWeight(joined, config.n_experts),
        "experts.up_proj.weight": SourceWeight(joined, config.n_experts, first_row=inner),
        "experts.down_proj.weight": SourceWeight(f"{stem}.output_linear.weight", config.n_experts),
    }.get(own)
