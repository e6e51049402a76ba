"""Ministral 3: the Llama recipe; queries grow beyond the context that YaRN stretches."""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.families import llama
from edgedec.models.families._gguf import stated_as
from edgedec.models.families._hf import hf_decoder, hf_windows, with_defaults
from edgedec.models.fields import Fields

recipe = decoder
weights = llama.weights

_YARN = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0,
    "original_max_position_embeddings": 16384, "beta_fast": 32.0, "beta_slow": 1.0,
    "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
"""What transformers takes where a directory states nothing."""


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields = with_defaults(
        fields,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=262144,
        rms_norm_eps=1e-5,
        rope_parameters=_YARN,
    )
    config = hf_windows(fields, hf_decoder(fields, "ministral3"))
    rope = fields.table("rope_parameters")
    growth = rope.number("llama_4_scaling_beta", 0.0)
    if not growth:
        return config
    start = rope.integer("original_max_position_embeddings", least=1)
    return dataclasses.replace(config, query_growth=growth, query_growth_start=start)


read_gguf = stated_as("ministral3", "mistral3", "Ministral 3")
