"""What models that fill masks in state besides their recipe."""

from __future__ import annotations

import dataclasses

from edgedec.models.config import ModelConfig
from edgedec.models.fields import Fields

_MASK, _SHIFT = "tokenizer.ggml.mask_token_id", "diffusion.shift_logits"


def hf_bidirectional(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Returns ``config`` with the mask token that ``config.json`` states."""
    return _bidirectional(fields, "mask_token_id", config, False)


def gguf_bidirectional(
    fields: Fields, config: ModelConfig, predicts_next: bool = False
) -> ModelConfig:
    """Returns ``config`` with the mask token that the GGUF header states.

    predicts_next: as for `ModelConfig`, where the header leaves it out.
    """
    fields.refuse(f"{config.family}.attention.causal", False)
    return _bidirectional(fields, _MASK, config, fields.flag(_SHIFT, predicts_next))


def _bidirectional(
    fields: Fields, key: str, config: ModelConfig, predicts_next: bool
) -> ModelConfig:
    return dataclasses.replace(
        config,
        stack="masked",
        mask_token=fields.integer(key, least=0, most=config.vocab_size - 1),
        predicts_next=predicts_next,
    )
