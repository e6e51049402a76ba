"""Mistral Small 3 and Ministral 3 by the name that GGUF files, and those with images, give them."""

from __future__ import annotations

import dataclasses

from edgedec.models.config import ModelConfig
from edgedec.models.families import ministral3
from edgedec.models.families._gguf import GgufFacts, gguf_decoder
from edgedec.models.fields import Fields

recipe = ministral3.recipe
weights = ministral3.weights


def read_hf(fields: Fields) -> ModelConfig:
    """Raises: there is no text_config, which states what the text model is."""
    fields.refuse_with("text_config", "is missing")


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states."""
    fields = facts.fields
    config = gguf_decoder(facts, "mistral3")
    growth = fields.number("mistral3.attention.temperature_scale", 0.0)
    if growth:
        start = fields.integer("mistral3.rope.scaling.original_context_length", least=1)
        config = dataclasses.replace(config, query_growth=growth, query_growth_start=start)
    return dataclasses.replace(config, family="ministral3")
