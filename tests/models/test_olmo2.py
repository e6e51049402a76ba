"""OLMo 2 against transformers: norms behind sub-layers, norms of whole q and k."""

from __future__ import annotations

from typing import Any

import pytest
from family_parity import SIZES, FamilyParity, transformers

pytestmark = pytest.mark.parity


class TestParity(FamilyParity):
    SIZES = {**SIZES, "head_dim": 10}
    EXPECTED = {
        "family": "olmo2",
        "has_pre_norms": False,
        "has_post_norms": True,
        "is_qk_norm_whole": True,
    }
    ARCHITECTURE = "olmo2"
    REFUSED = {"hidden_act": "gelu"}

    @classmethod
    def make_model(cls) -> Any:
        return transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**cls.SIZES))
