"""Llama with biases on the matrices of its MLPs, against transformers."""

from __future__ import annotations

from typing import Any

import pytest
from family_parity import SIZES, FamilyParity, transformers

pytestmark = pytest.mark.parity


class TestParity(FamilyParity):
    SIZES = {**SIZES, "mlp_bias": True, "attention_bias": True}
    EXPECTED = {"family": "llama", "has_mlp_bias": True}
    ARCHITECTURE = "llama"
    HAS_PAIRED_HEADS = True

    @classmethod
    def make_model(cls) -> Any:
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**cls.SIZES))
