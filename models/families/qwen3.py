"""Qwen3 (dense): the Llama recipe with an RMS norm over each head of q and of k."""

from __future__ import annotations

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.families._gguf import GgufFacts, gguf_decoder, gguf_weight
from edgedec.models.families._hf import hf_decoder, hf_optional_windows, with_defaults
from edgedec.models.families._places import placed, usual_hf
from edgedec.models.fields import Fields

recipe = decoder


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields = with_defaults(
        fields,
        num_key_value_heads=32,
        head_dim=128,
        max_position_embeddings=32768,
        max_window_layers=28,
    )
    has_bias = fields.flag("attention_bias", False)
    config = hf_decoder(fields, "qwen3", has_qkv_bias=has_bias, has_qk_norm=True)
    return hf_optional_windows(fields, config)


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states."""
    return gguf_decoder(facts, "qwen3", has_qk_norm=True)


weights = placed(usual_hf, gguf_weight)
