"""gpt-oss against transformers: sinks, windows, YaRN, experts with biases, MXFP4."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from family_parity import SIZES, TOKENS, FamilyParity, Logits, Tensors, Toy, torch, transformers

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.export.to_onnx.runners import FusedRunner
from edgedec.export.verifying.verify import compare_logits
from edgedec.models.config import LayerConfig
from edgedec.models.errors import CheckpointError
from edgedec.models.families import gpt_oss
from edgedec.models.fields import Fields
from edgedec.models.reference import ReferenceModel

pytestmark = pytest.mark.parity

LOCAL, GLOBAL = LayerConfig(56, 1e4, window=6), LayerConfig(56, 1e4)
YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
    "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
}  # fmt: skip
N_EXPERTS, N_USED = 6, 3
SEED = 1
"""Of weights with which no token's experts are nearly tied."""


class TestParity(FamilyParity):
    EXPECTED = {
        "family": "gpt_oss", "has_sinks": True, "expert_limit": 7.0, "n_experts": N_EXPERTS,
        "layers": (LOCAL, GLOBAL) * 2,
    }  # fmt: skip
    ARCHITECTURE = "gpt-oss"
    METADATA = {
        "expert_count": N_EXPERTS, "expert_used_count": N_USED, "expert_feed_forward_length": 56,
        "attention.sliding_window": 6, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 16,
    }  # fmt: skip
    LLAMA_CPP_DIFFERS = "it rounds the bounds of YaRN to whole channels"
    REFUSED = {"hidden_act": "gelu", "attention_bias": False, "swiglu_limit": 3.0,
               "swiglu_alpha": 1.0}  # fmt: skip
    YARN: ClassVar[dict[str, Any] | None] = YARN

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.GptOssConfig(
            **cls.SIZES, num_local_experts=N_EXPERTS, num_experts_per_tok=N_USED, sliding_window=6,
            rope_scaling=cls.YARN,
        )  # fmt: skip
        return transformers.GptOssForCausalLM(config)

    @classmethod
    def draw(cls, folder: Path) -> Toy:
        """Sinks that count as much as positions, gates and ups that reach the limit."""
        toy = super().draw(folder)
        torch.manual_seed(SEED)
        for name, parameter in toy.model.named_parameters():
            if name.endswith(".sinks"):
                torch.nn.init.normal_(parameter, mean=1.0, std=1.0)
            if name.endswith("gate_up_proj_bias"):
                parameter.data[:, :4] += torch.tensor([8.0, -8.0, 0.0, 9.0])
            if name.endswith("router.weight"):
                torch.nn.init.normal_(parameter, std=1.0)
        toy.model.save_pretrained(folder)
        return toy

    def gguf_tensors(self, name: str, values: Logits) -> Tensors:
        stem, _, own = name.removeprefix("model.layers.").partition(".")
        if own == "self_attn.sinks":
            yield f"blk.{stem}.attn_sinks.weight", values
        elif own.startswith("mlp.router."):
            yield f"blk.{stem}.ffn_gate_inp.{own.split('.')[-1]}", values
        elif own == "post_attention_layernorm.weight":
            yield f"blk.{stem}.post_attention_norm.weight", values
        elif own.startswith("mlp.experts."):
            is_bias = own.endswith("_bias")
            part, turned = ("bias", values) if is_bias else ("weight", values.swapaxes(1, 2))
            if "gate_up" in own:
                yield f"blk.{stem}.ffn_gate_exps.{part}", turned[:, ::2]
                yield f"blk.{stem}.ffn_up_exps.{part}", turned[:, 1::2]
            else:
                yield f"blk.{stem}.ffn_down_exps.{part}", turned
        else:
            yield from super().gguf_tensors(name, values)


class WithoutYarn(TestParity):
    METADATA: ClassVar[dict[str, Any]] = {
        key: value for key, value in TestParity.METADATA.items() if not key.startswith("rope.")
    }
    LLAMA_CPP_DIFFERS = ""
    YARN = None


@pytest.mark.models
def test_all_but_yarn_in_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = WithoutYarn.draw(tmp_path)
    WithoutYarn().test_gguf_in_llama_cpp(toy, tmp_path, monkeypatch)


class InBlocks(TestParity):
    SIZES = {**SIZES, "hidden_size": 64, "intermediate_size": 96}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """A model whose experts lie in blocks of MXFP4, as the published ones; transformers' floats."""
    from safetensors.torch import load_file, save_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    folder = tmp_path_factory.mktemp("blocks")
    toy = InBlocks.draw(folder)
    tensors = load_file(folder / "model.safetensors")
    for name, parameter in toy.model.named_parameters():
        if not name.endswith(("gate_up_proj", "down_proj")):
            continue
        n_experts, k, n = parameter.shape
        blocks = torch.randint(0, 256, (n_experts, n, k // 32, 16), dtype=torch.uint8)
        scales = torch.randint(120, 125, (n_experts, n, k // 32), dtype=torch.uint8)
        parameter.data = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        del tensors[name]
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(config))
    return toy


def test_mxfp4_is_kept_to_the_last_bit(published: Toy) -> None:
    checkpoint = open_checkpoint(str(published.folder))
    weights = dict(published.model.named_parameters())
    for layer in range(4):
        stem = f"layers.{layer}.mlp.experts"
        of_both = weights[f"model.{stem}.gate_up_proj"].detach().numpy().swapaxes(1, 2)
        down = weights[f"model.{stem}.down_proj"].detach().numpy().swapaxes(1, 2)
        expected = {"gate_proj": of_both[:, ::2], "up_proj": of_both[:, 1::2], "down_proj": down}
        for part, values in expected.items():
            name, rows = f"{stem}.{part}.weight", values.reshape(-1, values.shape[-1])
            assert checkpoint.format(name).name == "q5_0"
            for start, stop in ((0, len(rows)), (50, 251)):
                plain = checkpoint.rows(name, start, stop)
                np.testing.assert_array_equal(plain.dequantize(), rows[start:stop])


def test_mxfp4_runs(published: Toy, tmp_path: Path) -> None:
    logits = ReferenceModel(open_checkpoint(str(published.folder))).forward(TOKENS).logits
    np.testing.assert_allclose(logits, published.logits(TOKENS), atol=1e-3)
    entry = export(ExportConfig(str(published.folder), tmp_path / "b")).manifest.target
    runner = FusedRunner(tmp_path / "b" / entry.graph, entry.config, len(TOKENS))
    logits = runner.compute_logits(TOKENS, range(-1, len(TOKENS) - 1))
    assert compare_logits(logits, published.logits(TOKENS))["kl_nats"] < 1e-3


def damage(published: Toy, folder: Path, change: Any) -> str:
    from safetensors.torch import load_file, save_file

    for file in ("config.json", "tokenizer.json"):
        (folder / file).write_text((published.folder / file).read_text())
    tensors = load_file(published.folder / "model.safetensors")
    change(tensors, "model.layers.1.mlp.experts.down_proj")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return str(folder)


def test_damaged_blocks_are_refused(published: Toy, tmp_path: Path) -> None:
    def lose(tensors: Any, stem: str) -> None:
        del tensors[f"{stem}_scales"]

    def cut(tensors: Any, stem: str) -> None:
        tensors[f"{stem}_blocks"] = tensors[f"{stem}_blocks"][..., :8].contiguous()

    def exceed(tensors: Any, stem: str) -> None:
        tensors[f"{stem}_scales"][0, 0, 0] = 200

    with pytest.raises(CheckpointError, match=r"missing tensor .*down_proj_scales"):
        open_checkpoint(damage(published, tmp_path, lose))
    with pytest.raises(CheckpointError, match=r"down_proj_blocks has shape .*, 8\] and .*expected"):
        open_checkpoint(damage(published, tmp_path, cut))
    checkpoint = open_checkpoint(damage(published, tmp_path, exceed))
    with pytest.raises(CheckpointError, match=r"an MXFP4 scale is 2\^72, expected at most 2\^15"):
        checkpoint.rows("layers.1.mlp.experts.down_proj.weight", 0, 1)


def test_absent_keys_are_those_of_transformers() -> None:
    sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 3}
    fields = {**sizes, "num_attention_heads": 16}
    config = gpt_oss.read_hf(Fields(fields, "config.json", CheckpointError))
    theirs = transformers.GptOssConfig(**fields)
    assert (config.head_size, config.n_kv_heads) == (theirs.head_dim, theirs.num_key_value_heads)
    assert (config.n_experts, config.n_experts_used) == (128, 4)
    assert (config.max_positions, config.rope_theta) == (131072, 150000.0)
    assert [config.layer(i).window for i in range(3)] == [128, 0, 128]
    factors = config.rope_scaling.factors
    assert config.rope_scaling.factor == pytest.approx(1.3465735902799727)
    inverse, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["yarn"](theirs, "cpu")
    plain = 150000.0 ** -(np.arange(0, 64, 2) / 64)
    np.testing.assert_allclose(plain / np.array(factors), inverse.numpy(), rtol=1e-6)
