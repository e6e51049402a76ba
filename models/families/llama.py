"""Llama: SmolLM2, Llama 2 and 3, and others that share the recipe."""

from __future__ import annotations

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.families._gguf import GgufFacts, gguf_decoder, gguf_weight
from edgedec.models.families._hf import hf_decoder
from edgedec.models.families._places import placed, usual_hf
from edgedec.models.fields import Fields
from edgedec.models.weights import PairedHeads, SourceWeight

recipe = decoder


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    has_bias = fields.flag("attention_bias", False)
    return hf_decoder(fields, "llama", has_qkv_bias=has_bias, can_have_mlp_bias=True)


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states."""
    has_bias = "blk.0.attn_q.bias" in facts.shapes
    has_experts = facts.fields.integer("llama.expert_count", 0, least=0) > 0  # Mixtral
    return gguf_decoder(facts, "llama", has_qkv_bias=has_bias, has_experts=has_experts)


def in_gguf(config: ModelConfig, name: str) -> SourceWeight:
    """Returns where a weight lies in a GGUF file.

    Only the converters of this architecture and its kin reorder q and k for interleaved rotation.

    Source: ggml-org/llama.cpp ``convert_hf_to_gguf.py`` ``LlamaModel.permute`` (MIT).
    """
    n_heads = {"q_proj": config.n_heads, "k_proj": config.n_kv_heads}.get(name.split(".")[-2])
    return gguf_weight(config, name, PairedHeads(n_heads) if n_heads else None)


weights = placed(usual_hf, in_gguf)
