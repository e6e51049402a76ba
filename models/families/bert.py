"""BERT and MiniLM: encoders, for texts as vectors.

Source: arXiv:1810.04805; transformers ``modeling_bert.py`` (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from edgedec.models.blocks import Ops
from edgedec.models.config import ModelConfig
from edgedec.models.embedder import post_norm_encoder, post_norm_shapes
from edgedec.models.families._bert import UNREAD, bert_weights, gguf_bert, hf_bert
from edgedec.models.families._gguf import GgufFacts
from edgedec.models.fields import Fields
from edgedec.models.weights import Weight

__all__ = ["UNREAD", "read_gguf", "read_hf", "recipe", "weights"]

T = TypeVar("T")


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    return hf_bert(fields, "bert")


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states, of RoBERTa's files as well."""
    return gguf_bert(facts)


def recipe(ops: Ops[T], config: ModelConfig, layer_gates: Sequence[bool] | None = None) -> T:
    """Returns the hidden states of the selected rows; all layers run."""
    return post_norm_encoder(ops, config)


def weights(config: ModelConfig) -> dict[str, Weight]:
    """Returns the shape of each weight and where it lies."""
    return bert_weights(post_norm_shapes(config, config.max_positions), config)
