"""EXAONE 4 against transformers: windows with rotation, and layers without either."""

from __future__ import annotations

from typing import Any

import pytest
from family_parity import SIZES, FamilyParity, transformers

from edgedec.models.config import LayerConfig
from edgedec.models.errors import CheckpointError
from edgedec.models.families import exaone4
from edgedec.models.fields import Fields

pytestmark = pytest.mark.parity

LOCAL, GLOBAL = LayerConfig(56, 1e4, window=6), LayerConfig(56, 0.0)


class TestParity(FamilyParity):
    SIZES = {**SIZES, "head_dim": 10}
    EXPECTED = {"family": "exaone4", "layers": (LOCAL, LOCAL, LOCAL, GLOBAL)}
    ARCHITECTURE = "exaone4"
    METADATA = {"attention.sliding_window": 6}
    LLAMA_CPP_DIFFERS = "it has windows in models of 64 layers only"
    REFUSED = {"hidden_act": "gelu"}

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.Exaone4Config(**cls.SIZES, sliding_window=6)
        return transformers.Exaone4ForCausalLM(config)


FIELDS = {
    "vocab_size": 97, "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 5,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


def layers(**changes: Any) -> list[tuple[int, bool]]:
    """Returns window, and whether it rotates, of each layer."""
    config = exaone4.read_hf(Fields({**FIELDS, **changes}, "config.json", CheckpointError))
    return [(config.layer(i).window, config.layer(i).rope_theta > 0) for i in range(5)]


def test_layers_are_local_as_stated() -> None:
    local, whole = (6, True), (0, False)
    assert layers(sliding_window=6) == [local, local, local, whole, local]
    assert layers(sliding_window=6, sliding_window_pattern=2) == [local, whole] * 2 + [local]
    assert layers(sliding_window=6, sliding_window_pattern="LLG") == [
        local, local, whole, local, whole,
    ]  # fmt: skip
    assert layers(sliding_window=None) == [(0, True)] * 5
