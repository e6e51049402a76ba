"""Dream against transformers' Qwen2 with a full mask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bidirectional_parity import MASK, BidirectionalParity
from family_parity import transformers

pytestmark = pytest.mark.parity


class TestParity(BidirectionalParity):
    EXPECTED = {"family": "dream", "has_qkv_bias": True, "is_head_tied": False}
    ARCHITECTURE = "dream"
    SHIFT = 1
    REFUSED = {"use_sliding_window": True, "hidden_act": "gelu"}

    @classmethod
    def make_model(cls) -> Any:
        sizes = {**cls.SIZES}
        del sizes["head_dim"]  # Qwen2's heads share the hidden size
        return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes))

    @classmethod
    def save(cls, model: Any, folder: Path) -> None:
        model.save_pretrained(folder)
        path = folder / "config.json"
        stated = {"model_type": "Dream", "architectures": ["DreamModel"], "mask_token_id": MASK}
        path.write_text(json.dumps({**json.loads(path.read_text()), **stated}))
