"""Granite 3: the Llama recipe with four multipliers."""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.families import llama
from edgedec.models.families._gguf import GgufFacts, gguf_decoder
from edgedec.models.families._hf import hf_decoder, positive
from edgedec.models.fields import Fields

recipe = decoder
weights = llama.weights


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    has_bias = fields.flag("attention_bias", False)
    return hf_multipliers(fields, hf_decoder(fields, "granite", has_qkv_bias=has_bias))


def hf_multipliers(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Returns ``config`` with the multipliers of ``config.json``."""
    return _with_multipliers(
        config,
        embedding=positive(fields, "embedding_multiplier", 1.0),
        residual=positive(fields, "residual_multiplier", 1.0),
        attention=positive(fields, "attention_multiplier", 1.0),
        logits=positive(fields, "logits_scaling", 1.0),
    )


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states."""
    return gguf_multipliers(facts.fields, gguf_decoder(facts, "granite"))


def gguf_multipliers(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Returns ``config`` with the multipliers of the GGUF header.

    Source: ggml-org/llama.cpp ``src/models/granite.cpp`` (MIT): what ``finetuned`` means.
    """
    name = config.family
    if not fields.flag(f"{name}.rope.scaling.finetuned", True):  # here it means: rotates nothing
        layers = tuple(
            dataclasses.replace(config.layer(i), rope_theta=0.0) for i in range(config.n_layers)
        )
        config = dataclasses.replace(config, layers=layers)
    return _with_multipliers(
        config,
        embedding=positive(fields, f"{name}.embedding_scale", 1.0),
        residual=positive(fields, f"{name}.residual_scale", 1.0),
        attention=positive(fields, f"{name}.attention.scale", config.product_scale),
        logits=positive(fields, f"{name}.logit_scale", 1.0),
    )


def _with_multipliers(
    config: ModelConfig, embedding: float, residual: float, attention: float, logits: float
) -> ModelConfig:
    """Returns ``config`` with multipliers of embeddings, sub-layers, products of q and k, logits.

    The residual stream is kept divided by ``residual``, so that sub-layers add to it as they are:
    all who read it are RMS norms, which are blind to its scale but for their epsilon.
    """
    return dataclasses.replace(
        config,
        embedding_scale=embedding / residual,
        rms_norm_eps=config.rms_norm_eps / residual**2,
        attention_scale=attention,
        logit_scale=1 / logits,
    )
