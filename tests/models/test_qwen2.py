"""Qwen2 against transformers: biases on q, k and v, and windows in the later layers."""

from __future__ import annotations

from typing import Any

import pytest
from family_parity import SIZES, FamilyParity, transformers

from edgedec.models.config import LayerConfig
from edgedec.models.errors import CheckpointError
from edgedec.models.families import find_family
from edgedec.models.fields import Fields

pytestmark = pytest.mark.parity

WINDOW = 6
LAYERS = (*(LayerConfig(56, 1e4),) * 2, *(LayerConfig(56, 1e4, window=WINDOW),) * 2)


class TestParity(FamilyParity):
    SIZES = {**SIZES, "hidden_size": 48}
    EXPECTED = {"family": "qwen2", "has_qkv_bias": True, "layers": LAYERS}
    REFUSED = {"hidden_act": "gelu"}

    @classmethod
    def make_model(cls) -> Any:
        windows = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}
        return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**cls.SIZES, **windows))


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_windows_that_are_stated_by_their_first_layer(family: str) -> None:
    """As configs say it that are older than ``layer_types``."""
    stated = {**SIZES, "hidden_act": "silu", "sliding_window": WINDOW, "max_window_layers": 2}
    for is_used, layers in ((True, LAYERS), (False, ())):
        fields = Fields({**stated, "use_sliding_window": is_used}, "config.json", CheckpointError)
        assert find_family(family).read_hf(fields).layers == layers
