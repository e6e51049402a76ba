"""Safetensors directories that are quantised already: FP8, GPTQ and AWQ."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.checkpoints.small_floats import fp8_table
from edgedec.export.quantising.quantise import Quantized, measure_errors
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.families import matrices
from edgedec.models.weights import float_rows

torch = pytest.importorskip("torch", reason="needs the dev extra")
from safetensors.torch import load_file, save_file  # noqa: E402

HIDDEN, INNER, HEADS, VOCAB = 256, 384, 4, 300
SHAPES = {
    "self_attn.q_proj": (256, 256), "self_attn.k_proj": (128, 256), "self_attn.v_proj": (128, 256),
    "self_attn.o_proj": (256, 256), "mlp.gate_proj": (384, 256), "mlp.up_proj": (384, 256),
    "mlp.down_proj": (256, 384),
}  # fmt: skip
CONFIG = {
    "model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip
Packer = Callable[[torch.Tensor, str], dict[str, torch.Tensor]]


def write(folder: Path, pack: Packer, **quantization: Any) -> dict[str, np.ndarray]:
    """Writes a tiny llama whose matrices ``pack`` has packed; returns the matrices in float32."""
    folder.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "model.embed_tokens.weight": torch.randn(VOCAB, HIDDEN, generator=generator).half(),
        "model.norm.weight": torch.ones(HIDDEN),
        "model.layers.0.input_layernorm.weight": torch.ones(HIDDEN),
        "model.layers.0.post_attention_layernorm.weight": torch.ones(HIDDEN),
    }
    expected = {}
    for module, shape in SHAPES.items():
        name = f"layers.0.{module}"
        parts = pack(torch.randn(shape, generator=generator), module)
        expected[f"{name}.weight"] = parts.pop("expected").float().numpy()
        tensors |= {f"model.{name}.{part}": tensor.contiguous() for part, tensor in parts.items()}
    save_file(tensors, folder / "model.safetensors")
    stated = {**CONFIG, **({"quantization_config": quantization} if quantization else {})}
    (folder / "config.json").write_text(json.dumps(stated))
    return expected


def fp8(scales: str, dtype: torch.dtype = torch.float8_e4m3fn) -> Packer:
    """Returns a packer with scales of the whole, of rows, or of blocks of 128."""

    def pack(weight: torch.Tensor, module: str) -> dict[str, torch.Tensor]:
        n, k = weight.shape
        shape = {"whole": (1,), "rows": (n, 1), "blocks": (-(-n // 128), -(-k // 128))}[scales]
        scale = torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.5
        stored = weight.to(dtype)
        spread = scale
        if scales == "blocks":
            spread = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[:n, :k]
        name = "weight_scale_inv" if scales == "blocks" else "weight_scale"
        return {"weight": stored, name: scale, "expected": stored.float() * spread}

    return pack


@pytest.mark.parametrize("scales", ["whole", "rows", "blocks"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8(tmp_path: Path, scales: str, dtype: torch.dtype) -> None:
    expected = write(tmp_path, fp8(scales, dtype), quant_method="fp8", weight_block_size=[128, 128])
    checkpoint = open_checkpoint(str(tmp_path))
    for name, values in expected.items():
        got = float_rows(checkpoint, name, 0, len(values))
        np.testing.assert_array_equal(got, values)
        np.testing.assert_array_equal(float_rows(checkpoint, name, 7, 60), values[7:60])
    errors = measure_errors(checkpoint, Quantized(checkpoint, "keep"))
    assert {error.name for error in errors} == set(expected)
    assert {error.format for error in errors} == {"q8_0"}
    assert max(error.relative_rms for error in errors) < 0.01
    assert Quantized(checkpoint, "int4").format("layers.0.mlp.up_proj.weight").name == "q4_0"


def test_all_fp8_values() -> None:
    for bits, dtype in ((4, torch.float8_e4m3fn), (5, torch.float8_e5m2)):
        expected = torch.arange(256, dtype=torch.uint8).view(dtype).float().numpy()
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(fp8_table(bits)[finite], expected[finite])
        assert not np.isfinite(fp8_table(bits)[~finite]).any()


def codes(weight: torch.Tensor, group: int, is_symmetric: bool, n_bits: int = 4) -> Any:
    """Returns codes [N, K], zeros and scales [N, groups], and what they dequantise to."""
    n, k = weight.shape
    generator = torch.Generator().manual_seed(2)
    most = 1 << n_bits
    code = torch.randint(0, most, (n, k), generator=generator)
    low, high = (most // 2, most // 2 + 1) if is_symmetric else (1, most)
    zero = torch.randint(low, high, (n, k // group), generator=generator)
    scale = (torch.rand(n, k // group, generator=generator) * 0.02).half()
    spread = [t.repeat_interleave(group, 1) for t in (zero, scale)]
    return code, zero, scale, spread[1].float() * (code - spread[0]).float()


def as_words(nibbles: torch.Tensor, n_bits: int = 4) -> torch.Tensor:
    """Returns words of values along the first axis, the first in the lowest bits."""
    n = 32 // n_bits
    parts = nibbles.reshape(-1, n, *nibbles.shape[1:]).to(torch.int64)
    shifts = torch.arange(0, 32, n_bits).reshape(n, *[1] * (nibbles.ndim - 1))
    words = (parts << shifts).sum(1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def gptq(
    group: int,
    is_symmetric: bool = True,
    is_ordered: bool = False,
    has_bias: bool = False,
    bits: Callable[[str], int] = lambda module: 4,
    lacks: int = 1,
) -> Packer:
    """Returns a packer in AutoGPTQ's layout. bits: of a module. lacks: what stored zeros lack."""

    def pack(weight: torch.Tensor, module: str) -> dict[str, torch.Tensor]:
        n, k = weight.shape
        n_bits = bits(module)
        code, zero, scale, values = codes(weight, group, is_symmetric, n_bits)
        index = torch.arange(k, dtype=torch.int32) // group
        if is_ordered:
            shuffle = torch.randperm(k, generator=torch.Generator().manual_seed(3))
            code, values, index = code[:, shuffle], values[:, shuffle], index[shuffle]
        parts = {
            "qweight": as_words(code.T, n_bits), "scales": scale.T, "g_idx": index,
            "qzeros": as_words(zero - lacks, n_bits).T,  # words along rows, then groups first
            "expected": values,
        }  # fmt: skip
        return {**parts, **({"bias": torch.zeros(n)} if has_bias else {})}

    return pack


def awq(group: int, is_symmetric: bool = False) -> Packer:
    """Returns a packer in AutoAWQ's GEMM layout: columns in the order 0 2 4 6 1 3 5 7."""

    def reordered(values: torch.Tensor) -> torch.Tensor:
        eights = values.reshape(-1, 8, *values.shape[1:])
        return eights[:, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(values.shape)

    def pack(weight: torch.Tensor, module: str) -> dict[str, torch.Tensor]:
        code, zero, scale, values = codes(weight, group, is_symmetric)
        return {
            "qweight": as_words(reordered(code)).T, "qzeros": as_words(reordered(zero)).T,
            "scales": scale.T, "expected": values,
        }  # fmt: skip

    return pack


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}
CASES = [
    (gptq(128), GPTQ, "q4_0"),
    (gptq(32, has_bias=True), GPTQ, "q4_0"),
    (gptq(128, is_symmetric=False), GPTQ, "q5_0"),
    (gptq(128, is_ordered=True), GPTQ, "f32"),
    (gptq(128, bits=lambda module: 8), {**GPTQ, "bits": 8}, "q8_0"),
    (gptq(128, False, bits=lambda module: 8), {**GPTQ, "bits": 8}, "f32"),
    (gptq(128, bits=lambda module: 2), {**GPTQ, "bits": 2}, "q4_0"),
    (awq(128), AWQ, "q5_0"),
    (awq(64, is_symmetric=True), AWQ, "q4_0"),
]


@pytest.mark.parametrize(("pack", "stated", "held"), CASES)
def test_packed_matrices(tmp_path: Path, pack: Packer, stated: Any, held: str) -> None:
    expected = write(tmp_path, pack, **stated)
    checkpoint = open_checkpoint(str(tmp_path))
    for name, values in expected.items():
        assert checkpoint.format(name).name == held
        got = float_rows(checkpoint, name, 0, len(values))
        np.testing.assert_array_equal(got, values)
        np.testing.assert_array_equal(float_rows(checkpoint, name, 9, 50), values[9:50])
    errors = measure_errors(checkpoint, Quantized(checkpoint, "keep"))
    assert len(errors) == (len(SHAPES) if held == "f32" else 0)
    assert set(expected) < set(matrices(checkpoint.config))


V1, V2 = ({**GPTQ, "checkpoint_format": name} for name in ("gptq", "gptq_v2"))


@pytest.mark.parametrize(
    ("pack", "stated"),
    [
        (gptq(128, lacks=0), V2),
        (gptq(128, lacks=1), V1),
        # what packers state wrongly: symmetric codes have their zero in the middle
        (gptq(128, lacks=0), V1),
        (gptq(128, lacks=0), GPTQ),
        (gptq(128, lacks=0), {**GPTQ, "sym": True}),
        (gptq(128, lacks=1), V2),
        (gptq(128, bits=lambda module: 8, lacks=0), {**V1, "bits": 8}),
        (gptq(128, bits=lambda module: 2, lacks=0), {**V1, "bits": 2}),
        # zeros of others are as stated
        (gptq(128, False, lacks=0), {**V2, "sym": False}),
        (gptq(128, False, lacks=1), {**V1, "sym": False}),
        (gptq(128, False, lacks=0), V2),
        (gptq(128, True, lacks=0), {**V2, "sym": False}),
        (gptq(128, True, lacks=1), {**V1, "sym": False}),
    ],
)
def test_zeros_of_gptq_are_counted_as_they_are_stored(
    tmp_path: Path, pack: Packer, stated: Any
) -> None:
    expected = write(tmp_path, pack, **stated)
    checkpoint = open_checkpoint(str(tmp_path))
    for name, values in expected.items():
        np.testing.assert_array_equal(float_rows(checkpoint, name, 0, len(values)), values)


@pytest.mark.parametrize(
    ("name", "pack", "stated"),
    [
        ("quantize_config.json", gptq(128),
         {"bits": 4, "group_size": 128, "damp_percent": 0.01, "desc_act": False, "sym": True}),
        ("quantize_config.json", gptq(128, False, lacks=0), {**V2, "sym": False}),
        ("quantize_config.json", gptq(128, bits=lambda module: 8), {"bits": 8, "group_size": 128}),
        ("quant_config.json", awq(128),
         {"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"}),
    ],
)  # fmt: skip
def test_packing_may_be_stated_in_a_file_of_its_own(
    tmp_path: Path, name: str, pack: Packer, stated: Any
) -> None:
    expected = write(tmp_path, pack)
    (tmp_path / name).write_text(json.dumps(stated))
    checkpoint = open_checkpoint(str(tmp_path))
    for matrix, values in expected.items():
        np.testing.assert_array_equal(float_rows(checkpoint, matrix, 0, len(values)), values)


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("name", "stated", "words"),
    [
        ("quantize_config.json", {"bits": 3}, "quantization_config.bits is 3"),
        ("quantize_config.json", {"bits": 4, "is_marlin_format": True}, "is_marlin_format is True"),
        ("quantize_config.json", {"bits": 4, "checkpoint_format": "marlin"}, "format is 'marlin'"),
        ("quantize_config.json", [], "is not a table"),
        ("quant_config.json", {"w_bit": 4, "version": "GEMV"}, "version is 'GEMV'"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "W4A8_AWQ"}}, "is 'W4A8_AWQ'"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "MXFP8"}}, "is 'MXFP8'"),
    ],
)
def test_packing_in_a_file_of_its_own_that_is_not_read(
    tmp_path: Path, name: str, stated: Any, words: str
) -> None:
    write(tmp_path, gptq(128))
    (tmp_path / name).write_text(json.dumps(stated))
    with pytest.raises((CheckpointError, UnsupportedModelError), match=words):
        open_checkpoint(str(tmp_path))


def in_experts(pack: Packer, n: int) -> Packer:
    """Returns a packer that packs a module for each of ``n`` experts, where it is of an MLP."""

    def many(weight: torch.Tensor, module: str) -> dict[str, torch.Tensor]:
        if not module.startswith("mlp."):
            return pack(weight, module)
        found, whole = {}, []
        for expert, rows in enumerate([weight * (i + 1) for i in range(n)]):
            parts = pack(rows, module)
            whole.append(parts.pop("expected"))
            found |= {f"{expert}:{part}": tensor for part, tensor in parts.items()}
        return {**found, "expected": torch.cat(whole)}

    return many


@pytest.mark.parametrize(
    ("pack", "stated", "held"),
    [
        (gptq(128, has_bias=True), GPTQ, "q4_0"),
        (awq(128), AWQ, "q5_0"),
        (fp8("blocks"), {"quant_method": "fp8", "weight_block_size": [128, 128]}, "f32"),
    ],
)
def test_quantised_experts(tmp_path: Path, pack: Packer, stated: Any, held: str) -> None:
    """As Qwen3's mixtures are published: a matrix for each expert."""
    expected = write(tmp_path, in_experts(pack, 3), **stated)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in list(tensors):
        match = re.fullmatch(r"(.+\.mlp)\.(\w+)\.([0-9]+):(.+)", name)
        if match:
            stem, module, expert, part = match.groups()
            tensors[f"{stem}.experts.{expert}.{module}.{part}"] = tensors.pop(name)
    layer = "model.layers.0"
    tensors[f"{layer}.mlp.gate.weight"] = torch.randn(3, HIDDEN)
    tensors |= {f"{layer}.self_attn.{name}_norm.weight": torch.ones(64) for name in "qk"}
    save_file(tensors, tmp_path / "model.safetensors")
    own = {"num_experts": 3, "num_experts_per_tok": 1, "moe_intermediate_size": INNER}
    config = {**CONFIG, **own, "model_type": "qwen3_moe", "quantization_config": stated}
    (tmp_path / "config.json").write_text(json.dumps({**config, "head_dim": 64}))
    checkpoint = open_checkpoint(str(tmp_path))
    for name, values in expected.items():
        ours = name.replace(".mlp.", ".mlp.experts.")
        assert checkpoint.format(ours).name == held
        np.testing.assert_array_equal(float_rows(checkpoint, ours, 0, len(values)), values)
        np.testing.assert_array_equal(float_rows(checkpoint, ours, 99, 120), values[99:120])


def test_gptq_with_bits_for_each_module(tmp_path: Path) -> None:
    pack = gptq(128, bits=lambda module: 8 if "down_proj" in module else 4)
    dynamic = {r"+:.*\.down_proj.*": {"bits": 8}, r"-:.*lm_head": {}}
    expected = write(tmp_path, pack, **GPTQ, dynamic=dynamic)
    checkpoint = open_checkpoint(str(tmp_path))
    for name, values in expected.items():
        assert checkpoint.format(name).name == ("q8_0" if "down_proj" in name else "q4_0")
        np.testing.assert_array_equal(float_rows(checkpoint, name, 0, len(values)), values)


def drop(pack: Packer, part: str) -> Packer:
    """Returns a packer that leaves a part out."""
    return lambda weight, module: {k: v for k, v in pack(weight, module).items() if k != part}


def cut(pack: Packer, part: str) -> Packer:
    """Returns a packer that leaves rows of a part out."""
    return lambda weight, module: {
        k: v[:-1] if k == part else v for k, v in pack(weight, module).items()
    }


def changed(pack: Packer, part: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Packer:
    """Returns a packer that changes a part, where there is one."""
    return lambda weight, module: {
        k: change(v) if k == part else v for k, v in pack(weight, module).items()
    }


def sliced(pack: Packer, where: Any, *parts: str) -> Packer:
    """Returns a packer that keeps some of its parts."""
    for part in parts:
        pack = changed(pack, part, lambda values: values[where])
    return pack


def as_type(pack: Packer, part: str, dtype: torch.dtype) -> Packer:
    """Returns a packer that stores a part in another type."""
    return changed(pack, part, lambda values: values.to(dtype))


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("pack", "stated", "words"),
    [
        (drop(fp8("whole"), "weight_scale"), {}, r"F8_E4M3 and no scales beside it, expected"),
        (cut(fp8("rows"), "weight_scale"), {}, r"expected a scale, one for each row"),
        (drop(gptq(128), "scales"), GPTQ, r"missing tensor .*scales; the file is incomplete"),
        (cut(gptq(128), "scales"), GPTQ, "do not fit a matrix of|g_idx names groups"),
        (gptq(128), {**GPTQ, "bits": 8}, r"bits is 8, expected 4, as model.layers.0.*_proj has"),
        (gptq(128), {**GPTQ, "bits": 3}, r"bits is 3, only 2 or 4 or 8 is supported"),
        (gptq(128), {**GPTQ, "quant_method": "hqq"}, r"'hqq' cannot be read, expected one of"),
        (awq(128), {**AWQ, "version": "gemv"}, r"version is 'gemv'"),
        (gptq(128), {}, "quantization_config is missing"),
        (as_type(fp8("rows"), "weight_scale", torch.int32), {}, "weight_scale has type I32, exp"),
        (as_type(fp8("rows"), "weight_scale", torch.float8_e4m3fn), {}, "has type F8_E4M3, exp"),
        (changed(fp8("rows"), "weight_scale", lambda s: s[..., None]), {}, "expected a scale, one"),
        (as_type(gptq(128), "g_idx", torch.float32), GPTQ, "g_idx names groups that are not"),
        (sliced(drop(gptq(128), "g_idx"), slice(0), "scales", "qzeros"), GPTQ, "do not fit a"),
        (sliced(gptq(128), np.s_[:, :-1], "qweight", "scales", "qzeros"), GPTQ, "do not fit a"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, pack: Packer, stated: Any, words: str) -> None:
    write(tmp_path, pack, **stated)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=words) as caught:
        open_checkpoint(str(tmp_path))
    assert len(str(caught.value).splitlines()) == 1
