"""Granite 4 against transformers: Mamba-2 and attention without rotation; all dense."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.errors import UnsupportedModelError
from tests.parity.family_parity import SIZES, Toy, transformers
from tests.parity.recurrent_parity import RecurrentParity

pytestmark = pytest.mark.parity


class TestParity(RecurrentParity):
    SIZES: ClassVar[dict[str, Any]] = {**SIZES, "hidden_size": 48}
    EXPECTED: ClassVar[dict[str, Any]] = {"recurrent_layers": (0, 1, 3), "intermediate_size": 56}
    REFUSED: ClassVar[dict[str, Any]] = {"num_local_experts": 4, "mamba_n_groups": 2}
    MAMBA: ClassVar[dict[str, Any]] = {"mamba_n_heads": 4, "mamba_d_state": 20}

    @classmethod
    def make_model(cls) -> Any:
        sizes = {key: value for key, value in cls.SIZES.items() if key != "head_dim"}
        config = transformers.GraniteMoeHybridConfig(
            **sizes,
            **cls.MAMBA,
            layer_types=["mamba", "mamba", "attention", "mamba"],
            num_local_experts=0,
            shared_intermediate_size=56,
            embedding_multiplier=3.0,
            residual_multiplier=0.4,
            attention_multiplier=0.2,
            logits_scaling=0.8,
        )
        return transformers.GraniteMoeHybridForCausalLM(config)

    def test_portable(self, toy: Toy, tmp_path: Path) -> None:
        config = ExportConfig(str(toy.folder), tmp_path / "b", device_target="portable")
        with pytest.raises(UnsupportedModelError, match=r"mamba2.*compiler portable does not have"):
            export(config)


class TestParityWithRotation(TestParity):
    """Heads of more values than a multiple of sixteen, biases, and attention that rotates."""

    MAMBA: ClassVar[dict[str, Any]] = {
        "mamba_n_heads": 2,
        "mamba_d_state": 33,
        "mamba_proj_bias": True,
        "mamba_conv_bias": False,
        "position_embedding_type": "rope",
    }
