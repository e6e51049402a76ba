"""Qwen2 and Qwen2.5: the Llama recipe with biases on q, k and v."""

from __future__ import annotations

from edgedec.models.blocks import weight_shapes
from edgedec.models.config import ModelConfig
from edgedec.models.families._fields import Fields, hf_decoder, hf_names
from edgedec.models.families._gguf import GgufFacts, gguf_decoder, gguf_name
from edgedec.models.weights import SourceWeight, WeightMap


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields.refuse("use_sliding_window", False)
    return hf_decoder(fields, "qwen2", has_qkv_bias=True)


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states."""
    return gguf_decoder(facts, "qwen2", has_qkv_bias=True)


def map_hf(config: ModelConfig) -> WeightMap:
    """Returns where each weight lies in safetensors files."""
    names = hf_names(list(weight_shapes(config)))
    return {ours: SourceWeight(theirs) for ours, theirs in names.items()}


def map_gguf(config: ModelConfig) -> WeightMap:
    """Returns where each weight lies in a GGUF file."""
    return {ours: SourceWeight(gguf_name(ours)) for ours in weight_shapes(config)}
