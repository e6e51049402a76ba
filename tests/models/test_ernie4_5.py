"""ERNIE 4.5 against transformers: pairs of channels that lie side by side rotate."""

from __future__ import annotations

from typing import Any

import pytest
from family_parity import FamilyParity, transformers

pytestmark = pytest.mark.parity


class TestParity(FamilyParity):
    EXPECTED = {"family": "ernie4_5", "has_qkv_bias": False}
    ARCHITECTURE = "ernie4_5"
    REFUSED = {"use_bias": True, "hidden_act": "gelu"}

    @classmethod
    def make_model(cls) -> Any:
        return transformers.Ernie4_5ForCausalLM(transformers.Ernie4_5Config(**cls.SIZES))
