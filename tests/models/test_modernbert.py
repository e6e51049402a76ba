"""ModernBERT against transformers."""

from __future__ import annotations

from typing import Any

import pytest

from ..parity.embedder_parity import SIZES, EmbedderParity

transformers = pytest.importorskip("transformers", reason="needs the dev extra")


class TestParity(EmbedderParity):
    """Texts are longer than the window."""

    EXPECTED = {
        "family": "modernbert", "stack": "embedder", "n_logits": 40, "activation": "gelu",
        "windowed_layers": (), "look_back": 0, "rope_theta": 5e4,
    }  # fmt: skip
    REFUSED = {
        "hidden_activation": "silu", "attention_bias": True, "mlp_bias": True, "norm_bias": True,
    }  # fmt: skip

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.ModernBertConfig(
            **{**SIZES, "num_hidden_layers": 5}, local_attention=9, global_rope_theta=5e4,
            local_rope_theta=500.0, pad_token_id=0, bos_token_id=1, eos_token_id=2,
            cls_token_id=1, sep_token_id=2, reference_compile=False,
        )  # fmt: skip
        return transformers.ModernBertModel(config)

    def test_windows(self, toy: Any) -> None:
        from edgedec.export.checkpoints.checkpoint import open_checkpoint

        config = open_checkpoint(str(toy.folder)).config
        assert [config.layer(i).window for i in range(5)] == [0, 5, 5, 0, 5]
        assert [config.layer(i).rope_theta for i in range(5)] == [5e4, 500, 500, 5e4, 500]
