"""Granite's mixtures with an MLP that all tokens go through, as transformers names them."""

from __future__ import annotations

from edgedec.models.families.granitemoe import read_gguf, read_hf, recipe, weights

__all__ = ["read_gguf", "read_hf", "recipe", "weights"]
