"""Llama: SmolLM2, Llama 2 and 3, and others that share the recipe."""

from __future__ import annotations

from edgedec.models.blocks import weight_shapes
from edgedec.models.config import ModelConfig
from edgedec.models.families._fields import Fields, hf_decoder, hf_names
from edgedec.models.families._gguf import GgufFacts, gguf_decoder, gguf_name
from edgedec.models.weights import SourceWeight, WeightMap


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    return hf_decoder(fields, "llama", has_qkv_bias=fields.flag("attention_bias", False))


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states."""
    return gguf_decoder(facts, "llama", has_qkv_bias="blk.0.attn_q.bias" in facts.shapes)


def map_hf(config: ModelConfig) -> WeightMap:
    """Returns where each weight lies in safetensors files."""
    names = hf_names(list(weight_shapes(config)))
    return {ours: SourceWeight(theirs) for ours, theirs in names.items()}


def map_gguf(config: ModelConfig) -> WeightMap:
    """Returns where each weight lies in a GGUF file.

    Only this architecture's converter reorders q and k for interleaved rotation.

    Source: ggml-org/llama.cpp ``convert_hf_to_gguf.py`` ``LlamaModel.permute`` (MIT).
    """
    heads = {".q_proj.": config.n_heads, ".k_proj.": config.n_kv_heads}
    return {
        ours: SourceWeight(
            gguf_name(ours), next((n for part, n in heads.items() if part in ours), 0)
        )
        for ours in weight_shapes(config)
    }
