"""Granite 4 against transformers: Mamba-2 and attention without rotation; dense and mixtures."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from tests.parity.family_parity import SIZES, Logits, Tensors, transformers
from tests.parity.recurrent_parity import RecurrentParity

pytestmark = pytest.mark.parity


class TestParity(RecurrentParity):
    SIZES: ClassVar[dict[str, Any]] = {**SIZES, "hidden_size": 48}
    EXPECTED: ClassVar[dict[str, Any]] = {"recurrent_layers": (0, 1, 3), "intermediate_size": 56}
    REFUSED: ClassVar[dict[str, Any]] = {"mamba_n_groups": 2}
    EXPERTS: ClassVar[dict[str, Any]] = {"num_local_experts": 0, "shared_intermediate_size": 56}
    MAMBA: ClassVar[dict[str, Any]] = {"mamba_n_heads": 4, "mamba_d_state": 20}
    ARCHITECTURE = "granitehybrid"
    HAS_PAIRED_HEADS = True
    METADATA: ClassVar[dict[str, Any]] = {
        "embedding_scale": 3.0, "residual_scale": 0.4, "attention.scale": 0.2, "logit_scale": 0.8,
        "expert_shared_feed_forward_length": 56,
    }  # fmt: skip

    @classmethod
    def make_model(cls) -> Any:
        sizes = {key: value for key, value in cls.SIZES.items() if key != "head_dim"}
        config = transformers.GraniteMoeHybridConfig(
            **sizes,
            **cls.MAMBA,
            **cls.EXPERTS,
            layer_types=["mamba", "mamba", "attention", "mamba"],
            embedding_multiplier=3.0,
            residual_multiplier=0.4,
            attention_multiplier=0.2,
            logits_scaling=0.8,
        )
        return transformers.GraniteMoeHybridForCausalLM(config)

    def write_header(self, writer: Any) -> None:
        super().write_header(writer)
        writer.add_key_length(12)
        writer.add_head_count_kv([0, 0, 2, 0])
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_state_size(self.MAMBA["mamba_d_state"])
        writer.add_ssm_group_count(1)
        writer.add_ssm_time_step_rank(self.MAMBA["mamba_n_heads"])
        writer.add_ssm_inner_size(2 * self.SIZES["hidden_size"])
        writer.add_rope_scaling_finetuned("position_embedding_type" in self.MAMBA)

    def gguf_tensors(self, name: str, values: Logits) -> Tensors:
        """Source: ggml-org/llama.cpp ``conversion/granite.py``, ``conversion/mamba.py`` (MIT)."""
        if name.endswith("A_log"):
            values = -np.exp(values)
        if name.endswith(("A_log", "mamba.D")):
            values = values[:, np.newaxis]
        if name.endswith("mamba.norm.weight"):
            values = values[np.newaxis]
        values = values.squeeze(1) if name.endswith("conv1d.weight") else values
        if name.endswith(".input_linear.weight"):
            layer, of_all = name.split(".")[2], "shexp" if self.EXPERTS["num_local_experts"] else ""
            end = of_all if "shared_mlp" in name else "exps"
            for part, half in zip(("gate", "up"), np.split(values, 2, axis=-2), strict=True):
                yield f"blk.{layer}.{'_'.join(filter(None, ('ffn', part, end)))}.weight", half
            return
        if not self.EXPERTS["num_local_experts"]:
            name = name.replace("shared_mlp.output_linear", "mlp.down_proj")
        yield from super().gguf_tensors(name.replace("dt_bias", "dt_proj.bias"), values)


class TestParityWithRotation(TestParity):
    """Heads of more values than a multiple of sixteen, biases, and attention that rotates."""

    ARCHITECTURE = ""  # its GGUF files have neither these biases nor rotation
    MAMBA: ClassVar[dict[str, Any]] = {
        "mamba_n_heads": 2,
        "mamba_d_state": 33,
        "mamba_proj_bias": True,
        "mamba_conv_bias": False,
        "position_embedding_type": "rope",
    }


class TestParityWithExperts(TestParity):
    """A mixture of experts in every layer, beside an MLP of another width for all tokens."""

    EXPECTED: ClassVar[dict[str, Any]] = {
        "n_experts": 5, "n_experts_used": 2, "intermediate_size": 56, "shared_expert_size": 24,
        "has_shared_gate": False,
    }  # fmt: skip
    EXPERTS: ClassVar[dict[str, Any]] = {
        "num_local_experts": 5, "num_experts_per_tok": 2, "shared_intermediate_size": 24,
    }  # fmt: skip
    METADATA: ClassVar[dict[str, Any]] = {
        **TestParity.METADATA,
        "expert_shared_feed_forward_length": 24, "expert_count": 5, "expert_used_count": 2,
    }  # fmt: skip
