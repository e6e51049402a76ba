"""Granite's mixtures of experts against transformers."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from family_parity import SIZES, FamilyParity, Logits, Tensors, transformers

pytestmark = pytest.mark.parity


class TestParity(FamilyParity):
    SIZES = {**SIZES, "head_dim": 10}
    EXPECTED = {
        "family": "granitemoe",
        "n_experts": 5,
        "n_experts_used": 2,
        "attention_scale": 0.2,
    }
    ARCHITECTURE = "granitemoe"
    HAS_PAIRED_HEADS = True
    METADATA = {
        "attention.scale": 0.2,
        "embedding_scale": 3.0,
        "residual_scale": 0.5,
        "logit_scale": 2.0,
        "expert_count": 5,
        "expert_used_count": 2,
    }
    REFUSED = {"hidden_act": "gelu"}
    OWN: ClassVar[dict[str, Any]] = {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.2,
        "logits_scaling": 2.0,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
    }
    """What only this family's configuration has."""

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.GraniteMoeConfig(**cls.SIZES, **cls.OWN)
        return transformers.GraniteMoeForCausalLM(config)

    def gguf_tensors(self, name: str, values: Logits) -> Tensors:
        if name.endswith("input_linear.weight"):
            layer, end = name.split(".")[2], "shexp" if "shared_mlp" in name else "exps"
            for part, half in zip(("gate", "up"), np.split(values, 2, axis=-2), strict=True):
                yield f"blk.{layer}.ffn_{part}_{end}.weight", half
            return
        yield from super().gguf_tensors(name, values)


class TestParityWithAnMlpOfAllTokens(TestParity):
    """As transformers' `granitemoeshared`; its GGUF files have the architecture of the others."""

    EXPECTED = {**TestParity.EXPECTED, "shared_expert_size": 24, "has_shared_gate": False}
    METADATA = {**TestParity.METADATA, "expert_shared_feed_forward_length": 24}

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.GraniteMoeSharedConfig(
            **cls.SIZES,
            **cls.OWN,
            shared_intermediate_size=24,
        )
        return transformers.GraniteMoeSharedForCausalLM(config)
