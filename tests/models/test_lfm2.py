"""LFM2 against transformers: short convolutions with and without bias."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tests.parity.family_parity import SIZES, Logits, Tensors, transformers
from tests.parity.recurrent_parity import RecurrentParity

pytestmark = pytest.mark.parity


class TestParity(RecurrentParity):
    SIZES: ClassVar[dict[str, Any]] = {**SIZES, "hidden_size": 48, "intermediate_size": 84}
    EXPECTED: ClassVar[dict[str, Any]] = {
        "family": "lfm2",
        "recurrent_layers": (0, 1, 3),
        "intermediate_size": 56,
        "has_qk_norm": True,
    }
    ARCHITECTURE = "lfm2"
    METADATA: ClassVar[dict[str, Any]] = {"shortconv.l_cache": 3}
    REFUSED: ClassVar[dict[str, Any]] = {"hidden_act": "gelu"}
    HAS_BIAS: ClassVar[bool] = False

    @classmethod
    def make_model(cls) -> Any:
        sizes = {key: value for key, value in cls.SIZES.items() if key != "rms_norm_eps"}
        config = transformers.Lfm2Config(
            **sizes,
            norm_eps=1e-6,
            conv_bias=cls.HAS_BIAS,
            block_multiple_of=8,
            layer_types=["conv", "conv", "full_attention", "conv"],
        )
        return transformers.Lfm2ForCausalLM(config)

    def write_header(self, writer: Any) -> None:
        super().write_header(writer)
        writer.add_feed_forward_length(56)
        writer.add_head_count_kv([0, 0, 2, 0])

    def gguf_tensors(self, name: str, values: Logits) -> Tensors:
        return super().gguf_tensors(name, values.squeeze(1) if ".conv.conv.w" in name else values)


class TestParityWithBias(TestParity):
    HAS_BIAS = True
    LLAMA_CPP_DIFFERS = "it has no such biases"
