"""Dream: Qwen2's weights, bidirectional. The logits of a row are of the token behind it."""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.families import qwen2
from edgedec.models.families._bidirectional import gguf_bidirectional, hf_bidirectional
from edgedec.models.families._gguf import GgufFacts, gguf_decoder
from edgedec.models.families._hf import hf_decoder
from edgedec.models.fields import Fields

recipe = decoder
weights = qwen2.weights


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states.

    Source: Dream-org ``configuration_dream.py`` and ``generation_utils.py`` (Apache-2.0).
    """
    fields.refuse("use_sliding_window", False)
    config = hf_bidirectional(fields, hf_decoder(fields, "dream", has_qkv_bias=True))
    return dataclasses.replace(config, predicts_next=True)


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states."""
    config = gguf_decoder(facts, "dream", has_qkv_bias=True)
    return gguf_bidirectional(facts.fields, config, predicts_next=True)
