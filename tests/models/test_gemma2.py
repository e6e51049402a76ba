"""Gemma 2 against transformers: soft caps, norms around sub-layers, windows in every other one."""

from __future__ import annotations

from typing import Any

import pytest
from family_parity import SIZES, FamilyParity, Logits, Tensors, transformers

pytestmark = pytest.mark.parity

WINDOW = 6


class TestParity(FamilyParity):
    SIZES = {**SIZES, "tie_word_embeddings": True}
    EXPECTED = {
        "family": "gemma2",
        "attention_scale": 12**-0.5,
        "attention_softcap": 2.0,
        "logit_softcap": 3.0,
        "embedding_scale": 40**0.5,
    }
    ARCHITECTURE = "gemma2"
    METADATA = {
        "attention.sliding_window": WINDOW,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    }
    HAS_ORACLE = True
    NORM_MEAN = 0.0
    REFUSED = {"hidden_activation": "relu"}

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.Gemma2Config(
            **cls.SIZES,
            query_pre_attn_scalar=12,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
            sliding_window=WINDOW,
            attn_implementation="eager",
        )
        return transformers.Gemma2ForCausalLM(config)

    def gguf_tensors(self, name: str, values: Logits) -> Tensors:
        for theirs, stored in super().gguf_tensors(name, values):
            yield theirs, stored + 1 if "norm" in name else stored
