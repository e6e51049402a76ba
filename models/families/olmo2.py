"""OLMo 2: norms behind the sub-layers instead of before them, and over q and k as wholes."""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.families._gguf import GgufFacts, gguf_decoder
from edgedec.models.families._hf import hf_decoder, with_defaults
from edgedec.models.families._post_norms import post_norm_weights
from edgedec.models.fields import Fields

recipe = decoder
weights = post_norm_weights


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields.refuse("attention_bias", False)
    fields = with_defaults(fields, rms_norm_eps=1e-5)
    return _with_norms(hf_decoder(fields, "olmo2", has_qk_norm=True))


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states."""
    return _with_norms(gguf_decoder(facts, "olmo2", has_qk_norm=True))


def _with_norms(config: ModelConfig) -> ModelConfig:
    return dataclasses.replace(
        config, has_pre_norms=False, has_post_norms=True, is_qk_norm_whole=True
    )
