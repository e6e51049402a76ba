"""Bamba against transformers: Mamba-2, and attention that rotates half of each head."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.families import bamba
from edgedec.models.families._gguf import GgufFacts
from edgedec.models.fields import Fields
from tests.parity.family_parity import SIZES, transformers, unread_keys
from tests.parity.recurrent_parity import RecurrentParity

pytestmark = pytest.mark.parity


class TestParity(RecurrentParity):
    SIZES: ClassVar[dict[str, Any]] = {**SIZES, "hidden_size": 48}
    EXPECTED: ClassVar[dict[str, Any]] = {
        "family": "bamba", "recurrent_layers": (0, 1, 3), "kv_layers": (2,), "rotary_size": 6,
    }  # fmt: skip
    REFUSED: ClassVar[dict[str, Any]] = {"mamba_n_groups": 2, "mlp_bias": True}

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.BambaConfig(
            **cls.SIZES, attn_layer_indices=[2], mamba_n_heads=4, mamba_d_state=20,
            mamba_chunk_size=8,
        )  # fmt: skip
        return transformers.BambaForCausalLM(config)


class TestParityWithBias(TestParity):
    EXPECTED: ClassVar[dict[str, Any]] = {"has_qkv_bias": True, "has_o_bias": True}
    REFUSED: ClassVar[dict[str, Any]] = {}

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.BambaConfig(
            **cls.SIZES, attn_layer_indices=[1, 2], mamba_n_heads=2, mamba_d_state=33,
            mamba_chunk_size=8, mamba_proj_bias=True, mamba_conv_bias=False, attention_bias=True,
            partial_rotary_factor=1.0,
        )  # fmt: skip
        return transformers.BambaForCausalLM(config)


def test_what_is_none_of_ours_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="GGUF files of bamba are not supported"):
        bamba.read_gguf(GgufFacts(Fields({}, "x.gguf", CheckpointError), {}))
    for indices in ([4], [-1], ["2"]):
        fields = Fields({**SIZES, "attn_layer_indices": indices}, "config.json", CheckpointError)
        with pytest.raises(CheckpointError, match="attn_layer_indices"):
            bamba.read_hf(fields)


def test_every_key_of_the_class_is_read_or_changes_nothing() -> None:
    config = transformers.BambaConfig(**SIZES, attn_layer_indices=[1], mamba_n_heads=4).to_dict()
    unread = unread_keys(bamba.read_hf, config)
    assert unread - set(transformers.PretrainedConfig().to_dict()) == {
        "attention_dropout", "initializer_range", "mamba_chunk_size", "num_logits_to_keep",
        "use_cache", "z_loss_coefficient",
    }  # fmt: skip
