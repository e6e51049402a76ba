"""Granite 4 by the name that GGUF files give it."""

from __future__ import annotations

from edgedec.models.families.granitemoehybrid import read_gguf, read_hf, recipe, weights

__all__ = ["read_gguf", "read_hf", "recipe", "weights"]
