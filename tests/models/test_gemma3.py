"""Gemma 3's text models against transformers: two rotation tables, sliding and full layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from family_parity import SIZES, FamilyParity, Logits, Tensors, transformers

from edgedec.apps import inspect as inspect_bundle
from edgedec.apps.console.terminal import bytes_text
from edgedec.models.config import LayerConfig, ModelConfig
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.families import find_family
from edgedec.models.fields import Fields
from edgedec.models.manifest import read_manifest

pytestmark = pytest.mark.parity

WINDOW = 6
LOCAL = LayerConfig(56, 1e4, window=WINDOW, has_rope_scaling=False)
FULL = LayerConfig(56, 1e6)


class TestParity(FamilyParity):
    SIZES = {
        **SIZES, "tie_word_embeddings": True, "rope_theta": 1e6, "num_hidden_layers": 7,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }  # fmt: skip
    EXPECTED = {"family": "gemma3", "has_qk_norm": True, "layers": (*(LOCAL,) * 5, FULL, LOCAL)}
    ARCHITECTURE = "gemma3"
    METADATA = {"attention.sliding_window": WINDOW, "rope.scaling.factor": 8.0}
    HAS_ORACLE = True
    NORM_MEAN = 0.0
    REFUSED = {
        "attention_bias": True,
        "hidden_activation": "gelu",
    }

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.Gemma3TextConfig(
            **cls.SIZES,
            query_pre_attn_scalar=12,
            sliding_window=WINDOW,
            attn_implementation="eager",
        )
        return transformers.Gemma3ForCausalLM(config)

    def gguf_tensors(self, name: str, values: Logits) -> Tensors:
        for theirs, stored in super().gguf_tensors(name, values):
            yield theirs, stored + 1 if "norm" in name else stored


class TestThreeWindows(FamilyParity):
    """A text over four windows long, more than the rows that its layers keep."""

    SIZES = {**TestParity.SIZES, "max_position_embeddings": 160}
    NORM_MEAN = 0.0
    N_NEW = 100

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.Gemma3TextConfig(
            **cls.SIZES,
            query_pre_attn_scalar=12,
            sliding_window=24,
            attn_implementation="eager",
        )
        return transformers.Gemma3ForCausalLM(config)

    def test_rings(self, bundle: Path) -> None:
        entry = read_manifest(bundle).target
        assert entry.contract.kv.ring_layers == (0, 1, 2, 3, 4, 6)
        assert entry.contract.kv.ring_rows == 64 < 7 + self.N_NEW
        # 4 numbers of 12 channels a layer in halves: of all tokens in one layer, of 64 in six.
        text = inspect_bundle._kv_cache_text(entry)
        assert text.endswith("6 of 7 layers keep the latest 64 tokens")
        assert f"{bytes_text(96 * (160 + 6 * 64))} when the context is full" in text


def read(**fields: Any) -> ModelConfig:
    whole = {**SIZES, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 8, **fields}
    return find_family("gemma3").read_hf(Fields(whole, "config.json", CheckpointError))


def test_rotations_of_each_kind_of_layer() -> None:
    """As transformers 5 writes them."""
    config = read(
        rope_parameters={
            "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
            "sliding_attention": {"rope_theta": 2e4, "rope_type": "default"},
        },
        layer_types=["sliding_attention", "full_attention"] * 2,
    )
    assert config.rope_scaling.factor == 8.0
    assert [(i.rope_theta, i.window, i.has_rope_scaling) for i in config.layers[:2]] == [
        (2e4, 8, False),
        (1e6, 0, True),
    ]


def test_models_of_images_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="text_config is there"):
        read(text_config={})


def test_unknown_kinds_of_layers_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="layer_types has 'chunked_attention', only"):
        read(layer_types=["full_attention", "chunked_attention"] * 2)
