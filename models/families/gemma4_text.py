"""Gemma 4's text models by the name that transformers gives them."""

from __future__ import annotations

from edgedec.models.families.gemma4 import read_gguf, read_hf, recipe, weights

__all__ = ["read_gguf", "read_hf", "recipe", "weights"]
