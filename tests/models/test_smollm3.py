"""SmolLM3 against transformers: every fourth layer rotates nothing."""

from __future__ import annotations

from typing import Any

import pytest
from family_parity import FamilyParity, transformers

from edgedec.models.config import LayerConfig

pytestmark = pytest.mark.parity


class TestParity(FamilyParity):
    EXPECTED = {
        "family": "smollm3",
        "layers": (*(LayerConfig(56, 1e4),) * 3, LayerConfig(56, 0.0)),
    }
    ARCHITECTURE = "smollm3"
    HAS_PAIRED_HEADS = True
    METADATA = {"rope.dimension_count": 12}
    REFUSED = {"mlp_bias": True}

    @classmethod
    def make_model(cls) -> Any:
        return transformers.SmolLM3ForCausalLM(transformers.SmolLM3Config(**cls.SIZES))


class TestChosenLayers(FamilyParity):
    """The layers that rotate are listed, and those that do not have a window."""

    EXPECTED = {
        "layers": (
            LayerConfig(56, 0.0, window=5),
            LayerConfig(56, 1e4),
            LayerConfig(56, 0.0, window=5),
            LayerConfig(56, 1e4),
        )
    }

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.SmolLM3Config(
            **cls.SIZES, no_rope_layers=[0, 1, 0, 1], use_sliding_window=True, sliding_window=5
        )
        return transformers.SmolLM3ForCausalLM(config)
