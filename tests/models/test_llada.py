"""LLaDA against transformers' Llama with a full mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bidirectional_parity import MASK, BidirectionalParity
from family_parity import gguf, transformers
from llada_toy import INNER, OUTER, name_in_llada, save_as_llada

pytestmark = pytest.mark.parity


class TestParity(BidirectionalParity):
    EXPECTED = {"family": "llada", "is_head_tied": False, "n_kv_heads": 2, "rope_theta": 1e4}
    REFUSED = {
        "block_type": "sequential", "activation_type": "gelu", "alibi": True,
        "attention_layer_norm": True, "include_bias": True, "clip_qkv": 8.0, "embedding_size": 128,
    }  # fmt: skip
    ARCHITECTURE = "llada"
    HAS_PAIRED_HEADS = True

    @classmethod
    def make_model(cls) -> Any:
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**cls.SIZES))

    @classmethod
    def save(cls, model: Any, folder: Path) -> None:
        save_as_llada(model, cls.SIZES, MASK, folder)


def test_names_are_those_that_gguf_knows() -> None:
    """`gguf` has a table of the publisher's names: what each weight is, from somebody else."""
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLADA, 1)
    names = [*OUTER, *(f"model.layers.0.{stem}" for stem in INNER)]
    for name in names:
        theirs = name_in_llada(f"{name}.weight").removesuffix(".weight")
        assert known.get_name(theirs) == known.get_name(name), theirs
