"""Qwen3 against transformers: norms of heads, a tied head."""

from __future__ import annotations

from typing import Any

import pytest
from family_parity import SIZES, FamilyParity, transformers

pytestmark = pytest.mark.parity


class TestParity(FamilyParity):
    SIZES = {**SIZES, "tie_word_embeddings": True}
    EXPECTED = {
        "family": "qwen3",
        "has_qk_norm": True,
        "has_qkv_bias": False,
        "head_size": 12,
        "is_head_tied": True,
    }
    ARCHITECTURE = "qwen3"
    HAS_ORACLE = True
    REFUSED = {"hidden_act": "gelu", "partial_rotary_factor": 0.5}

    @classmethod
    def make_model(cls) -> Any:
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**cls.SIZES))
