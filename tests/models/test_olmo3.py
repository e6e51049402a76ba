"""OLMo 3 against transformers: windows, and a RoPE scaling of the layers without one."""

from __future__ import annotations

from typing import Any

import pytest
from family_parity import SIZES, FamilyParity, transformers

from edgedec.models.config import LayerConfig

pytestmark = pytest.mark.parity

LOCAL = LayerConfig(56, 1e4, window=6, has_rope_scaling=False)


class TestParity(FamilyParity):
    SIZES = {**SIZES, "head_dim": 10}
    EXPECTED = {"family": "olmo3", "layers": (LOCAL, LOCAL, LOCAL, LayerConfig(56, 1e4))}
    ARCHITECTURE = "olmo2"
    METADATA = {
        "attention.sliding_window": 6,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 4.0,
    }
    REFUSED = {"hidden_act": "gelu"}

    @classmethod
    def make_model(cls) -> Any:
        scaling = {"rope_type": "linear", "factor": 4.0}
        config = transformers.Olmo3Config(**cls.SIZES, sliding_window=6, rope_scaling=scaling)
        return transformers.Olmo3ForCausalLM(config)
