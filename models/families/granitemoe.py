"""Granite 3's mixtures of experts: Granite with a router over MLPs that are stored stacked.

Beside them may be an MLP that all tokens go through.
"""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder, decoder_shapes
from edgedec.models.config import ModelConfig
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.families import llama
from edgedec.models.families._gguf import (
    SHARED_IN_GGUF,
    GgufFacts,
    gguf_decoder,
    gguf_weight,
    layer_part,
)
from edgedec.models.families._hf import hf_decoder, hf_name, with_defaults
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
    return hf_granite_experts(fields, config, shared_size=0)


def hf_granite_experts(fields: Fields, config: ModelConfig, shared_size: int) -> ModelConfig:
    """Returns ``config`` with the experts that ``config.json`` states.

    shared_size: width of the MLP of all tokens where that is not stated; 0 for none.
    """
    return dataclasses.replace(
        config,
        n_experts=fields.integer("num_local_experts", least=1),
        n_experts_used=fields.integer("num_experts_per_tok", least=1),
        shared_expert_size=fields.integer("shared_intermediate_size", shared_size, least=0),
        has_shared_gate=False,
    )


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states."""
    config = gguf_multipliers(facts.fields, gguf_decoder(facts, "granitemoe", has_experts=True))
    return gguf_granite_experts(facts.fields, config)


def gguf_granite_experts(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Returns ``config`` with the MLP of all tokens that the header states."""
    shared = fields.integer(f"{config.family}.expert_shared_feed_forward_length", 0, least=0)
    return dataclasses.replace(config, shared_expert_size=shared, has_shared_gate=False)


def weights(config: ModelConfig) -> dict[str, Weight]:
    """Returns the shape of each weight and where it lies."""
    return {
        name: expert_weight(config, name, shape)
        if config.n_experts and ".mlp." in name
        else Weight(shape, hf=SourceWeight(hf_name(name)), gguf=llama.in_gguf(config, name))
        for name, shape in decoder_shapes(config).items()
    }


def expert_weight(config: ModelConfig, name: str, shape: tuple[int, ...]) -> Weight:
    """Returns the ``shape`` of a weight of experts and where it lies.

    In directories gate and up of an MLP are one tensor.
    """
    layer, part = layer_part(name)
    part = part.removeprefix("mlp.").removesuffix(".weight")
    stem, n = f"model.layers.{layer}", config.n_experts
    moe, shared = f"{stem}.block_sparse_moe", f"{stem}.shared_mlp"
    inner, wide = config.intermediate_size, config.shared_expert_size
    hf = {
        "router": SourceWeight(f"{moe}.router.layer.weight"),
        "experts.gate_proj": SourceWeight(f"{moe}.input_linear.weight", n),
        "experts.up_proj": SourceWeight(f"{moe}.input_linear.weight", n, first_row=inner),
        "experts.down_proj": SourceWeight(f"{moe}.output_linear.weight", n),
        "shared.gate_proj": SourceWeight(f"{shared}.input_linear.weight"),
        "shared.up_proj": SourceWeight(f"{shared}.input_linear.weight", first_row=wide),
        "shared.down_proj": SourceWeight(f"{shared}.output_linear.weight"),
    }[part]
    if part in SHARED_IN_GGUF:
        return Weight(shape, hf=hf, gguf=SourceWeight(f"blk.{layer}.{SHARED_IN_GGUF[part]}.weight"))
    return Weight(shape, hf=hf, gguf=gguf_weight(config, name))
