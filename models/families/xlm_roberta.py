"""XLM-R: RoBERTa over many languages."""

from __future__ import annotations

from edgedec.models.families.roberta import UNREAD, read_gguf, read_hf, recipe, weights

__all__ = ["UNREAD", "read_gguf", "read_hf", "recipe", "weights"]
