"""RoBERTa and XLM-R: BERT's recipe; the first token has the third row of the table of positions.

Source: arXiv:1907.11692; transformers ``modeling_roberta.py`` (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from edgedec.models.blocks import Ops
from edgedec.models.config import ModelConfig
from edgedec.models.embedder import post_norm_encoder, post_norm_shapes
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.families._bert import UNREAD, bert_weights, hf_bert
from edgedec.models.families._gguf import GgufFacts
from edgedec.models.fields import Fields
from edgedec.models.weights import Weight

__all__ = ["UNREAD", "read_gguf", "read_hf", "recipe", "weights"]

T = TypeVar("T")

_FIRST = 2
"""Row of the first position: that behind the padding token's."""


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields.refuse("pad_token_id", _FIRST - 1)
    return hf_bert(fields, "roberta", _FIRST)


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Refuses GGUF files, whose architecture is ``bert``.

    Raises:
        UnsupportedModelError: Always.
    """
    raise UnsupportedModelError("GGUF files of RoBERTa have the architecture bert")


def recipe(ops: Ops[T], config: ModelConfig, layer_gates: Sequence[bool] | None = None) -> T:
    """Returns the hidden states of the selected rows; all layers run."""
    return post_norm_encoder(ops, config, _FIRST)


def weights(config: ModelConfig) -> dict[str, Weight]:
    """Returns the shape of each weight and where it lies."""
    return bert_weights(post_norm_shapes(config, config.max_positions + _FIRST), config)
