"""Mistral: the Llama recipe, with a sliding window over all layers in its first versions."""

from __future__ import annotations

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.families import llama
from edgedec.models.families._gguf import stated_as
from edgedec.models.families._hf import hf_decoder, hf_windows, with_defaults
from edgedec.models.fields import Fields

recipe = decoder
weights = llama.weights


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields = with_defaults(
        fields, num_key_value_heads=8, sliding_window=4096, max_position_embeddings=131072
    )
    return hf_windows(fields, hf_decoder(fields, "mistral"))


read_gguf = stated_as("mistral", "llama", "Mistral")
