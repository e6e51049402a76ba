"""ERNIE 4.5 (dense): the Llama recipe, with q and k stored for interleaved rotation everywhere."""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.families import llama
from edgedec.models.families._gguf import GgufFacts, gguf_decoder
from edgedec.models.families._hf import hf_decoder, hf_name, with_defaults
from edgedec.models.fields import Fields
from edgedec.models.weights import Weight

recipe = decoder


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields = with_defaults(
        fields,
        num_key_value_heads=2,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        tie_word_embeddings=True,
        head_dim=128,
    )
    fields.refuse("use_bias", False)
    return hf_decoder(fields, "ernie4_5")


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states."""
    return gguf_decoder(facts, "ernie4_5")


def weights(config: ModelConfig) -> dict[str, Weight]:
    """Returns the shape of each weight and where it lies."""
    return {
        name: dataclasses.replace(weight, hf=dataclasses.replace(weight.gguf, name=hf_name(name)))
        for name, weight in llama.weights(config).items()
    }
