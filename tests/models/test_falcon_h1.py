"""Falcon-H1 against transformers: attention beside Mamba-2, multipliers of every part."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.checkpoints.lora import Merged
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.families import falcon_h1
from edgedec.models.fields import Fields
from tests.parity.family_parity import SIZES, Logits, Tensors, transformers, unread_keys
from tests.parity.recurrent_parity import RecurrentParity

pytestmark = pytest.mark.parity

MULTIPLIERS: dict[str, Any] = {
    "embedding_multiplier": 3.0, "lm_head_multiplier": 0.7, "key_multiplier": 0.6,
    "attention_in_multiplier": 1.25, "attention_out_multiplier": 0.8, "ssm_in_multiplier": 1.4,
    "ssm_out_multiplier": 0.75, "mlp_multipliers": [0.9, 0.55],
    "ssm_multipliers": [0.8, 1.3, 0.7, 0.9, 1.2],
}  # fmt: skip
N_HEADS, N_GROUPS, HEAD, STATE = 4, 2, 20, 24


class TestParity(RecurrentParity):
    EXPECTED: ClassVar[dict[str, Any]] = {
        "family": "falcon_h1", "recurrent_layers": (0, 1, 2, 3), "kv_layers": (0, 1, 2, 3),
        "embedding_scale": 3.0, "logit_scale": 0.7,
    }  # fmt: skip
    REFUSED: ClassVar[dict[str, Any]] = {
        "hidden_act": "gelu", "mlp_bias": True, "projectors_bias": True,
    }  # fmt: skip
    ARCHITECTURE = "falcon-h1"
    MAMBA: ClassVar[dict[str, Any]] = {"mamba_rms_norm": False}

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.FalconH1Config(
            **cls.SIZES, **{**MULTIPLIERS, **cls.MAMBA}, mamba_d_ssm=N_HEADS * HEAD,
            mamba_n_heads=N_HEADS, mamba_n_groups=N_GROUPS, mamba_d_state=STATE,
            mamba_chunk_size=8,
        )  # fmt: skip
        return transformers.FalconH1ForCausalLM(config)

    def write_header(self, writer: Any) -> None:
        super().write_header(writer)
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_state_size(STATE)
        writer.add_ssm_group_count(N_GROUPS)
        writer.add_ssm_time_step_rank(N_HEADS)
        writer.add_ssm_inner_size(N_HEADS * HEAD)

    def gguf_tensors(self, name: str, values: Logits) -> Tensors:
        """Source: ggml-org/llama.cpp ``conversion/falcon_h1.py``, ``conversion/mamba.py`` (MIT)."""
        m, part = MULTIPLIERS, name.split(".")[-2]
        gate, down = m["mlp_multipliers"]
        inner, keys = N_HEADS * HEAD, N_GROUPS * STATE
        counts = (inner, inner, keys, keys, N_HEADS)
        factor = {
            "embed_tokens": m["embedding_multiplier"], "lm_head": m["lm_head_multiplier"],
            "gate_proj": gate, "down_proj": down, "o_proj": m["attention_out_multiplier"],
            "q_proj": m["attention_in_multiplier"], "v_proj": m["attention_in_multiplier"],
            "k_proj": m["attention_in_multiplier"] * m["key_multiplier"],
            "in_proj": m["ssm_in_multiplier"] * np.repeat(m["ssm_multipliers"], counts)[:, None],
            "out_proj": m["ssm_out_multiplier"],
        }.get(part, 1.0)  # fmt: skip
        values = values * np.asarray(factor, np.float32)
        if name.endswith("A_log"):
            values = -np.exp(values)
        if name.endswith(("A_log", "mamba.D")):
            values = values[:, np.newaxis]
        if name.endswith("mamba.norm.weight"):
            values = values.reshape(N_GROUPS, -1)
        values = values.squeeze(1) if name.endswith("conv1d.weight") else values
        yield from super().gguf_tensors(name.replace("dt_bias", "dt_proj.bias"), values)


class TestParityWithNorm(TestParity):
    """A norm of each group behind the gate, and biases wherever there can be some."""

    EXPECTED: ClassVar[dict[str, Any]] = {"has_qkv_bias": True, "has_o_bias": True}
    REFUSED: ClassVar[dict[str, Any]] = {}
    ARCHITECTURE = ""  # its GGUF files have no such biases
    MAMBA: ClassVar[dict[str, Any]] = {
        "mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_proj_bias": True,
        "projectors_bias": True, "mamba_conv_bias": False, "attention_bias": True,
    }  # fmt: skip


class TestParityWithNormInGguf(TestParity):
    MAMBA: ClassVar[dict[str, Any]] = {"mamba_rms_norm": True, "mamba_norm_before_gate": False}


class TestParityWithNormBeforeGate(TestParity):
    EXPECTED: ClassVar[dict[str, Any]] = {"embedding_scale": 3.0}
    ARCHITECTURE = ""  # llama.cpp has the gate first
    MAMBA: ClassVar[dict[str, Any]] = {"mamba_rms_norm": True}


def read(**changes: Any) -> Any:
    sizes = {**SIZES, "mamba_d_ssm": 80, "mamba_n_heads": 4, **changes}
    return falcon_h1.read_hf(Fields(sizes, "config.json", CheckpointError))


def test_absent_keys_are_those_of_the_class_and_null_ones_are_not() -> None:
    theirs = transformers.FalconH1Config()
    fields = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 56}
    fields |= {"num_hidden_layers": 2, "num_attention_heads": 8, "mamba_n_heads": 4}
    config = falcon_h1.read_hf(Fields(fields, "config.json", CheckpointError))
    assert (config.max_positions, config.rope_theta) == (8192, theirs.rope_theta)
    assert (config.rms_norm_eps, config.n_kv_heads) == (theirs.rms_norm_eps, 8)
    assert config.recurrence.value_size == theirs.mamba_d_ssm
    assert config.recurrence.gated_norm == "none"
    assert read(mamba_d_ssm=None).recurrence.value_size == 2 * SIZES["hidden_size"]
    assert read(num_key_value_heads=None).n_kv_heads == SIZES["num_attention_heads"]
    assert read(mamba_rms_norm=True).recurrence.gated_norm == "first"


def test_every_key_of_the_class_is_read_or_changes_nothing() -> None:
    config = transformers.FalconH1Config(**SIZES, **MULTIPLIERS, mamba_rms_norm=True).to_dict()
    of_all = set(transformers.PretrainedConfig().to_dict())
    unread = unread_keys(
        lambda fields: falcon_h1.hf_scales(falcon_h1.read_hf(fields), fields), config
    )
    assert unread - of_all == {
        "attention_dropout", "initializer_range", "mamba_chunk_size", "num_logits_to_keep",
        "use_cache",
    }  # fmt: skip


@pytest.mark.parametrize(
    "changes", [{"ssm_multipliers": [1.0]}, {"mlp_multipliers": [1.0, 0]}, {"key_multiplier": -1.0}]
)
def test_multipliers_that_make_no_sense(changes: dict[str, Any]) -> None:
    fields = Fields({**SIZES, **changes}, "config.json", CheckpointError)
    with pytest.raises(CheckpointError, match=rf"{next(iter(changes))}.* expected .*positive"):
        falcon_h1.hf_scales(read(), fields)


def test_without_multipliers_matrices_stay_as_they_are() -> None:
    assert falcon_h1.hf_scales(read(), Fields(SIZES, "config.json", CheckpointError)) == {}


def test_scaled_matrices_are_floats_and_take_no_adapters(tmp_path: Path) -> None:
    toy = TestParity.draw(tmp_path)
    toy.model.bfloat16().save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    names = [f"layers.0.mlp.{part}_proj.weight" for part in ("up", "down")]
    assert [checkpoint.format(name).name for name in names] == ["bf16", "f32"]
    with pytest.raises(UnsupportedModelError, match="adapters are not merged into falcon_h1"):
        Merged(checkpoint, ((tmp_path, 1.0),))
