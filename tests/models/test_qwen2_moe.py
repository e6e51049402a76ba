"""Qwen2's mixtures of experts against transformers: an expert for all tokens, with a gate."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from family_parity import SIZES, FamilyParity, Logits, Tensors, Toy, transformers

from edgedec.export.checkpoints.checkpoint import open_checkpoint

pytestmark = pytest.mark.parity


class TestParity(FamilyParity):
    SIZES = {**SIZES, "head_dim": 10}
    EXPECTED = {"family": "qwen2_moe", "n_experts": 5, "shared_expert_size": 24}
    ARCHITECTURE = "qwen2moe"
    METADATA = {
        "expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 20,
        "expert_shared_feed_forward_length": 24,
    }  # fmt: skip
    REFUSED = {
        "hidden_act": "gelu", "decoder_sparse_step": 2, "mlp_only_layers": [0],
        "use_sliding_window": True,
    }  # fmt: skip

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.Qwen2MoeConfig(
            **cls.SIZES, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=20,
            shared_expert_intermediate_size=24,
        )  # fmt: skip
        return transformers.Qwen2MoeForCausalLM(config)

    def test_windows_that_are_stated_by_layer(self, toy: Toy, tmp_path: Path) -> None:
        """As transformers 5 writes them. Without the list its versions disagree, so it is refused.

        Version 4 has the window in all layers, 5 in every second one, the documents say the last.
        """
        folder = Path(shutil.copytree(toy.folder, tmp_path / "windows"))
        config = json.loads((folder / "config.json").read_text())
        config |= {"use_sliding_window": True, "sliding_window": 5}
        config["layer_types"] = ["sliding_attention", "full_attention"] * 2
        (folder / "config.json").write_text(json.dumps(config))
        assert open_checkpoint(str(folder)).config.windowed_layers == (0, 2)

    def gguf_tensors(self, name: str, values: Logits) -> Tensors:
        if (whole := self.stacked_experts(name, values, 5)) is None:
            return
        name, values = whole
        if name.endswith("shared_expert_gate.weight"):
            values = values[0]  # older files have it as a vector
        yield from super().gguf_tensors(name, values)
