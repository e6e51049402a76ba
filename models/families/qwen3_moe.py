"""Qwen3's mixtures of experts: the attention of Qwen3, a router over many small MLPs."""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.families._gguf import GgufFacts, gguf_decoder, gguf_weight
from edgedec.models.families._hf import hf_decoder, hf_name, with_defaults
from edgedec.models.families._places import placed
from edgedec.models.fields import Fields, shown
from edgedec.models.weights import SourceWeight

recipe = decoder


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields = with_defaults(
        fields,
        num_key_value_heads=4,
        max_position_embeddings=32768,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
    )
    fields.refuse("use_sliding_window", False)
    refuse_dense_layers(fields)
    return hf_mixture(fields, "qwen3_moe")


def hf_mixture(fields: Fields, family: str) -> ModelConfig:
    """Returns the config of a decoder with norms of heads and experts in all layers."""
    has_bias = fields.flag("attention_bias", False)
    config = hf_decoder(fields, family, has_qkv_bias=has_bias, has_qk_norm=True)
    return dataclasses.replace(
        config,
        intermediate_size=fields.integer("moe_intermediate_size"),
        n_experts=hf_experts(fields),
        n_experts_used=fields.integer("num_experts_per_tok", least=1),
        is_routing_normed=fields.flag("norm_topk_prob", False),
    )


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states."""
    config = gguf_decoder(facts, "qwen3moe", has_qk_norm=True, has_experts=True)
    return dataclasses.replace(config, family="qwen3_moe")


def hf_experts(fields: Fields) -> int:
    """Returns how many experts there are; transformers 5 writes another key than 4."""
    key = "num_experts" if fields.get("num_local_experts") is None else "num_local_experts"
    return fields.integer(key, least=1)


def refuse_dense_layers(fields: Fields) -> None:
    """Refuses models that have experts in some layers only."""
    fields.refuse("decoder_sparse_step", 1)
    if (dense := fields.get("mlp_only_layers")) not in (None, []):
        raise UnsupportedModelError(
            f"{fields.origin}: mlp_only_layers is {shown(dense)}, only [] is supported"
        )


def in_hf(config: ModelConfig, name: str) -> SourceWeight:
    """Returns where a weight lies in a directory: experts one by one."""
    theirs = hf_name(name.replace(".router.", ".gate."))
    if ".experts." not in name:
        return SourceWeight(theirs)
    theirs = theirs.replace(".experts.", ".experts.{expert}.")
    return SourceWeight(theirs, config.n_experts)


weights = placed(in_hf, gguf_weight)
