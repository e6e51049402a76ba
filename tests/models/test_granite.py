"""Granite against transformers: four multipliers."""

from __future__ import annotations

from typing import Any

import pytest
from family_parity import FamilyParity, transformers

pytestmark = pytest.mark.parity


class TestParity(FamilyParity):
    EXPECTED = {
        "family": "granite",
        "embedding_scale": 3.0 / 0.25,
        "attention_scale": 0.2,
        "logit_scale": 0.5,
        "rms_norm_eps": 16e-6,
    }
    ARCHITECTURE = "granite"
    HAS_PAIRED_HEADS = True
    METADATA = {
        "attention.scale": 0.2,
        "embedding_scale": 3.0,
        "residual_scale": 0.25,
        "logit_scale": 2.0,
    }
    REFUSED = {"hidden_act": "gelu", "mlp_bias": True}

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.GraniteConfig(
            **cls.SIZES,
            embedding_multiplier=3.0,
            residual_multiplier=0.25,
            attention_multiplier=0.2,
            logits_scaling=2.0,
        )
        return transformers.GraniteForCausalLM(config)
