"""Qwen3.5's mixtures of experts by the name that GGUF files give them."""

from __future__ import annotations

from edgedec.models.families.qwen3_5_moe_text import read_gguf, read_hf, recipe, weights

__all__ = ["read_gguf", "read_hf", "recipe", "weights"]
