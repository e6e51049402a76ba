"""Gemma 3n's text models by the name that transformers gives them."""

from __future__ import annotations

from edgedec.models.families.gemma3n import read_gguf, read_hf, recipe, weights

__all__ = ["read_gguf", "read_hf", "recipe", "weights"]
