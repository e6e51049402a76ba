"""Qwen3-Next and Qwen3.5 against transformers: gated delta rules, gates behind attention.

The oracle is Qwen3-Next of transformers 4. Qwen3.5 has the same layers, whose projections are
tensors of their own, with and without experts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.models.errors import CheckpointError
from edgedec.models.families import find_family
from edgedec.models.fields import Fields
from tests.parity.family_parity import SIZES, Logits, Tensors, Toy, transformers
from tests.parity.recurrent_parity import RecurrentParity

pytestmark = pytest.mark.parity

LINEAR, FULL = "linear_attention", "full_attention"
N_EXPERTS = 5


class TestParity(RecurrentParity):
    SIZES: ClassVar[dict[str, Any]] = {**SIZES, "head_dim": 16}
    EXPECTED: ClassVar[dict[str, Any]] = {
        "family": "qwen3_next", "recurrent_layers": (0, 2, 3), "rotary_size": 4,
        "has_output_gate": True, "n_experts": N_EXPERTS, "shared_expert_size": 20,
    }  # fmt: skip
    REFUSED: ClassVar[dict[str, Any]] = {"decoder_sparse_step": 2, "hidden_act": "gelu"}
    ARCHITECTURE = "qwen3next"
    N_KEYS, N_VALUES, HEAD = 2, 6, 20
    EXPERTS: ClassVar[dict[str, Any]] = {
        "num_experts": N_EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 20,
    }  # fmt: skip
    NORM_MEAN = 0.0  # but for those behind the rule, they are stored without their one
    LAYERS: ClassVar[list[str]] = [LINEAR, FULL, LINEAR, LINEAR]
    MORE: ClassVar[dict[str, Any]] = {}
    N_DRAFT_LAYERS = 0

    @classmethod
    def spread(cls, name: str) -> tuple[float, float]:
        """Channels are large, so that silu leaves few products of q and k near 0.

        There the norm behind the rule makes any noise as large as an output, that of 8-bit
        activations, too. Whether trained weights keep away from there was not looked at.
        """
        if name.endswith("conv1d.weight"):
            return 0.0, 5.0
        return (1.0, 0.3) if name.endswith("linear_attn.norm.weight") else super().spread(name)

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.Qwen3NextConfig(
            **cls.SIZES, **cls.EXPERTS, **cls.MORE, layer_types=cls.LAYERS,
            linear_num_key_heads=cls.N_KEYS, linear_num_value_heads=cls.N_VALUES,
            linear_key_head_dim=cls.HEAD, linear_value_head_dim=cls.HEAD,
        )  # fmt: skip
        return transformers.Qwen3NextForCausalLM(config)

    @classmethod
    def apart(cls, name: str, values: Logits) -> dict[str, Logits]:
        """Returns the tensors of Qwen3.5 that one of Qwen3-Next comes to.

        Source: transformers ``modeling_qwen3_next.py`` ``fix_query_key_value_ordering``.
        """
        each = cls.N_VALUES // cls.N_KEYS
        values_at = 2 * cls.HEAD
        cuts = {
            "qkvz.weight": [cls.HEAD, values_at, values_at + each * cls.HEAD], "ba.weight": [each],
        }  # fmt: skip
        stem, _, last = name.rpartition(".in_proj_")
        if last not in cuts:
            return {name: values}
        groups = values.reshape(cls.N_KEYS, -1, values.shape[-1])
        parts = [p.reshape(-1, values.shape[-1]) for p in np.split(groups, cuts[last], axis=1)]
        joined = {"qkvz.weight": ("qkv", "z"), "ba.weight": ("b", "a")}[last]
        both = (np.concatenate(parts[:-1]), parts[-1])
        return {f"{stem}.in_proj_{n}.weight": p for n, p in zip(joined, both, strict=True)}

    def write_header(self, writer: Any) -> None:
        super().write_header(writer)
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_state_size(self.HEAD)
        writer.add_ssm_group_count(self.N_KEYS)
        writer.add_ssm_time_step_rank(self.N_VALUES)
        writer.add_ssm_inner_size(self.N_VALUES * self.HEAD)
        writer.add_rope_dimension_count(self.SIZES["head_dim"] // 4)
        recurrent = [kind == LINEAR for kind in self.LAYERS] + [False] * self.N_DRAFT_LAYERS
        writer.add_array(f"{self.ARCHITECTURE}.attention.recurrent_layers", recurrent)
        if "moe_intermediate_size" in self.EXPERTS:
            writer.add_expert_count(N_EXPERTS)
            writer.add_expert_used_count(2)
            writer.add_expert_feed_forward_length(24)
            writer.add_expert_shared_feed_forward_length(20)

    def gguf_tensors(self, name: str, values: Logits) -> Tensors:
        """Source: ggml-org/llama.cpp ``conversion/qwen.py`` ``Qwen3NextModel`` (MIT)."""
        if (whole := self.stacked_experts(name, values, N_EXPERTS)) is None:
            return
        name, values = whole
        if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            values = values + 1
        if name.endswith("A_log"):
            values = -np.exp(values)
        if "conv1d" in name:
            values = values.squeeze(1)
        name = name.replace("dt_bias", "dt_proj.bias")
        if ".in_proj_qkvz." in name:
            layer = name.split(".")[2]
            for theirs, part in self.apart(name, values).items():
                kind = "attn_gate" if theirs.endswith("z.weight") else "attn_qkv"
                yield f"blk.{layer}.{kind}.weight", part
        else:
            yield from super().gguf_tensors(name, values)


class TestQwen35(TestParity):
    """Dense; its rotation is stated as transformers 5 does; its GGUF file has a draft layer."""

    EXPECTED: ClassVar[dict[str, Any]] = {
        "family": "qwen3_5_text", "recurrent_layers": (0, 2, 3), "rotary_size": 4, "n_experts": 0,
        "has_output_gate": True,
    }  # fmt: skip
    EXPERTS: ClassVar[dict[str, Any]] = {"mlp_only_layers": [0, 1, 2, 3], "num_experts": N_EXPERTS}
    REFUSED: ClassVar[dict[str, Any]] = {"hidden_act": "gelu"}
    ARCHITECTURE = "qwen35"
    N_DRAFT_LAYERS = 1

    @classmethod
    def draw(cls, folder: Path) -> Toy:
        toy = super().draw(folder)
        fields = json.loads((folder / "config.json").read_text())
        fields["model_type"] = cls.EXPECTED["family"]
        fields["rope_parameters"] = {
            "rope_type": "default", "rope_theta": fields.pop("rope_theta"),
            "partial_rotary_factor": fields.pop("partial_rotary_factor"),
            "mrope_section": [1, 1, 0], "mrope_interleaved": True,
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(fields))
        apart: dict[str, Logits] = {}
        for name, values in load_file(folder / "model.safetensors").items():
            apart |= cls.apart(name, values)
        save_file(apart, folder / "model.safetensors")
        return toy

    def write_header(self, writer: Any) -> None:
        super().write_header(writer)
        writer.add_rope_dimension_sections([1, 1, 0, 0])
        writer.add_block_count(len(self.LAYERS) + self.N_DRAFT_LAYERS)
        writer.add_nextn_predict_layers(self.N_DRAFT_LAYERS)

    def gguf_tensors(self, name: str, values: Logits) -> Tensors:
        """Heads of values lie tiled: the first of each group, then the second.

        Source: ggml-org/llama.cpp ``conversion/qwen.py`` ``_LinearAttentionVReorderBase`` (MIT).
        """
        if name == "lm_head.weight" and self.N_DRAFT_LAYERS:
            yield from self.draft_layer()
        each = self.N_VALUES // self.N_KEYS
        order = np.arange(self.N_VALUES).reshape(self.N_KEYS, each).T.reshape(-1)
        rows = np.arange(self.N_VALUES * self.HEAD).reshape(self.N_VALUES, -1)[order].reshape(-1)
        behind = 2 * self.N_KEYS * self.HEAD
        channels = np.concatenate([np.arange(behind), behind + rows])
        orders = {"qkv": channels, "conv1d": channels, "z": rows}
        for theirs, part in self.apart(name, values).items():
            kind = theirs.removesuffix(".weight").rpartition(".")[2].removeprefix("in_proj_")
            if kind in orders:
                part = part[orders[kind]]
            elif kind in ("b", "a", "A_log", "dt_bias"):
                part = part[order]
            elif theirs.endswith("linear_attn.out_proj.weight"):
                part = part[:, rows]
            yield from super().gguf_tensors(theirs, part)

    def draft_layer(self) -> Tensors:
        rng, hidden = np.random.default_rng(1), self.SIZES["hidden_size"]
        wide, narrow = (self.SIZES[f"num_{n}_heads"] * 16 for n in ("attention", "key_value"))
        shapes = {
            "nextn.eh_proj": (hidden, 2 * hidden), "attn_q": (2 * wide, hidden),
            "attn_k": (narrow, hidden), "attn_v": (narrow, hidden), "attn_output": (hidden, wide),
            "ffn_gate": (56, hidden), "ffn_up": (56, hidden), "ffn_down": (hidden, 56),
            "attn_q_norm": (16,), "attn_k_norm": (16,),
        }  # fmt: skip
        for name in ("nextn.enorm", "nextn.hnorm", "attn_norm", "post_attention_norm"):
            shapes[name] = (hidden,)
        for name, shape in shapes.items():
            yield (
                f"blk.{len(self.LAYERS)}.{name}.weight",
                rng.standard_normal(shape).astype(np.float32),
            )


class TestQwen35WithBias(TestQwen35):
    EXPECTED: ClassVar[dict[str, Any]] = {
        "family": "qwen3_5_text", "has_qkv_bias": True, "has_o_bias": True,
    }  # fmt: skip
    ARCHITECTURE = ""
    MORE: ClassVar[dict[str, Any]] = {"attention_bias": True}


class TestQwen35Experts(TestQwen35):
    """Its experts are stacked, gates and up projections in one tensor."""

    EXPECTED: ClassVar[dict[str, Any]] = {
        "family": "qwen3_5_moe_text", "n_experts": N_EXPERTS, "n_experts_used": 2,
        "is_routing_normed": True, "shared_expert_size": 20,
    }  # fmt: skip
    EXPERTS: ClassVar[dict[str, Any]] = TestParity.EXPERTS
    ARCHITECTURE = "qwen35moe"
    N_DRAFT_LAYERS = 0

    @classmethod
    def draw(cls, folder: Path) -> Toy:
        toy = super().draw(folder)
        tensors = load_file(folder / "model.safetensors")
        for layer in range(4):
            stem = f"model.layers.{layer}.mlp.experts"
            parts = {
                part: np.stack([tensors.pop(f"{stem}.{i}.{part}.weight") for i in range(N_EXPERTS)])
                for part in ("gate_proj", "up_proj", "down_proj")
            }
            both = [parts["gate_proj"], parts["up_proj"]]
            tensors[f"{stem}.gate_up_proj"] = np.concatenate(both, axis=1)
            tensors[f"{stem}.down_proj"] = parts["down_proj"]
        save_file(tensors, folder / "model.safetensors")
        return toy


def test_the_text_model_of_one_that_sees_images(tmp_path: Path) -> None:
    """Draft heads and what images go through are left out; names have a part more."""
    toy = TestQwen35.draw(tmp_path)
    expected = open_checkpoint(str(toy.folder)).config
    fields = json.loads((tmp_path / "config.json").read_text())
    outer = {"model_type": "qwen3_5", "text_config": fields, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    tensors = {
        name.replace("model.", "model.language_model."): values
        for name, values in load_file(tmp_path / "model.safetensors").items()
    }
    tensors |= {name: np.ones((2, 3), np.float32) for name in ("mtp.fc.weight", "model.visual.x")}
    save_file(tensors, tmp_path / "model.safetensors")
    assert open_checkpoint(str(tmp_path)).config == expected


def test_each_fourth_layer_has_attention_where_nothing_is_stated() -> None:
    fields = {**SIZES, "num_hidden_layers": 9, "head_dim": 16}
    read = find_family("qwen3_5_text").read_hf
    assert read(Fields(fields, "config.json", CheckpointError)).kv_layers == (3, 7)
    fields["full_attention_interval"] = 2
    assert read(Fields(fields, "config.json", CheckpointError)).kv_layers == (1, 3, 5, 7)
