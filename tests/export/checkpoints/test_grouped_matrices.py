"""Directories of MLX, compressed-tensors and bitsandbytes, as their own libraries read them."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.checkpoints.mlx_matrices import mlx_matrix
from edgedec.export.checkpoints.safetensors_file import read_tensors
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.export.quantising.quantise import Quantized, measure_errors
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.fields import Fields
from edgedec.models.weights import float_rows

torch = pytest.importorskip("torch", reason="needs the dev extra")
from safetensors.torch import load_file, save_file  # noqa: E402

from tests.export.checkpoints.test_stored_matrices import CONFIG, SHAPES, write  # noqa: E402
from tests.export.tiny_llama import TOKENIZER  # noqa: E402

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


MLX = """
import sys
import mlx.core as mx
import numpy as np

given, found, size, dtype = sys.argv[1], {}, int(sys.argv[2]), getattr(mx, sys.argv[3])
for key, values in np.load(given).items():
    name, bits = key.split(":")
    codes, scales, biases = mx.quantize(mx.array(values, dtype), group_size=size, bits=int(bits))
    wide = [part.astype(mx.float32) for part in (scales, biases)]
    whole = mx.dequantize(codes, *wide, group_size=size, bits=int(bits))
    parts = {"weight": codes, "scales": wide[0], "biases": wide[1], "expected": whole}
    found |= {f"{name}.{part}": np.array(array) for part, array in parts.items()}
np.savez(given, **found)
"""
"""A program of its own, because MLX reports its leaks when it ends."""


def write_mlx(folder: Path, n_bits: int, size: int, dtype: str, **own: Any) -> dict[str, Any]:
    """Writes a tiny llama as mlx-lm converts one; returns the matrices as MLX reads them.

    own: the bits of a module, by the end of its name.
    """
    if find_spec("mlx") is None or find_spec("mlx.core") is None:
        pytest.skip("MLX is not on this machine")
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    norms = ("model.norm", *(f"model.layers.0.{n}_layernorm" for n in ("input", "post_attention")))
    tensors = {f"{name}.weight": torch.ones(256) for name in norms}
    shapes = {"embed_tokens": (300, 256)} | {f"layers.0.{m}": s for m, s in SHAPES.items()}
    given, expected = {}, {}
    stated: dict[str, Any] = {"group_size": size, "bits": n_bits, "mode": "affine"}
    for name, shape in shapes.items():
        bits = next((b for end, b in own.items() if name.endswith(end)), n_bits)
        if bits != n_bits:
            stated[f"model.{name}"] = {"group_size": size, "bits": bits}
        given[f"{name}:{bits}"] = rng.standard_normal(shape).astype(np.float32) * 0.05
    path = folder / "given.npz"
    np.savez(path, **given)
    subprocess.run([sys.executable, "-c", MLX, path, str(size), dtype], check=True)
    for key, values in np.load(path).items():
        name, _, part = key.rpartition(".")
        if part == "expected":
            expected[f"{name}.weight"] = values
            continue
        tensor = torch.from_numpy(values)
        tensors[f"model.{key}"] = tensor if part == "weight" else tensor.to(DTYPES[dtype])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "mlx"})
    config = {**CONFIG, "quantization": stated, "quantization_config": stated}
    (folder / "config.json").write_text(json.dumps(config))
    return expected


def test_what_mlx_packed(tmp_path: Path) -> None:
    """Matrices of `mlx_matrices.npz`, which MLX 0.32 packed and unpacked."""
    stored = np.load(Path(__file__).with_name("mlx_matrices.npz"))
    stems = sorted({key.split(".")[0] for key in stored})
    assert len(stems) == 12
    for stem in stems:
        parts = {p: torch.from_numpy(stored[f"{stem}.{p}"]) for p in ("weight", "scales", "biases")}
        save_file({f"m.{part}": tensor for part, tensor in parts.items()}, tmp_path / stem)
        n_bits, size = map(int, stem.split("_"))
        stated = {"quantization": {"bits": n_bits, "group_size": size}}
        config = Fields(stated, "config.json", CheckpointError)
        matrix = mlx_matrix(dict(read_tensors(tmp_path / stem)), "m", config)
        expected = stored[f"{stem}.expected"]
        got = matrix.plain(np.arange(len(expected))).dequantize()
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("n_bits", "size", "dtype", "held"),
    [
        (4, 64, "float16", "q4_1"), (4, 32, "bfloat16", "q4_1"), (8, 64, "float16", "q8_1"),
        (8, 128, "bfloat16", "q8_1"), (3, 64, "float16", "q4_1"), (2, 64, "float16", "q4_1"),
        (5, 64, "float16", "q5_1"), (6, 32, "float16", "q8_1"), (4, 64, "float32", "f32"),
    ],
)  # fmt: skip
def test_directories_of_mlx(tmp_path: Path, n_bits: int, size: int, dtype: str, held: str) -> None:
    expected = write_mlx(tmp_path, n_bits, size, dtype)
    checkpoint = open_checkpoint(str(tmp_path))
    for name, values in expected.items():
        assert checkpoint.format(name).name == held
        got = float_rows(checkpoint, name, 0, len(values))
        np.testing.assert_allclose(got, values, rtol=1e-6, atol=1e-8)
        np.testing.assert_array_equal(float_rows(checkpoint, name, 9, 50), got[9:50])
    errors = measure_errors(checkpoint, Quantized(checkpoint, "keep"))
    assert len(errors) == (len(expected) if held == "f32" else 0)
    assert all(0 < error.relative_rms < 0.01 for error in errors)


def test_mlx_with_bits_for_each_module(tmp_path: Path) -> None:
    expected = write_mlx(tmp_path, 4, 64, "float16", down_proj=6, embed_tokens=8)
    checkpoint = open_checkpoint(str(tmp_path))
    for name, values in expected.items():
        got = float_rows(checkpoint, name, 0, len(values))
        np.testing.assert_allclose(got, values, rtol=1e-6, atol=1e-8)


def test_a_bundle_of_a_directory_of_mlx(tmp_path: Path) -> None:
    write_mlx(tmp_path / "mlx", 4, 64, "bfloat16")
    (tmp_path / "mlx/tokenizer.json").write_text(json.dumps(TOKENIZER))
    done = export(ExportConfig(str(tmp_path / "mlx"), tmp_path / "b.edgedec"))
    assert set(done.manifest.target.tensor_formats.values()) == {"q4_1"}
    assert done.warnings == ()


@pytest.mark.robustness
def test_what_of_mlx_is_not_read(tmp_path: Path) -> None:
    write_mlx(tmp_path, 4, 64, "float16")

    def refusal(kind: type[Exception] = CheckpointError, **stated: Any) -> str:
        config = {**CONFIG, "quantization": {"group_size": 64, "bits": 4, **stated}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(kind) as caught:
            open_checkpoint(str(tmp_path))
        assert len(str(caught.value).splitlines()) == 1
        return str(caught.value)

    assert "mode is 'mxfp9', only 'affine' or" in refusal(UnsupportedModelError, mode="mxfp9")
    assert "do not fit a matrix of [300, 256]" in refusal(mode="mxfp4", group_size=None)
    assert "bits is 7, expected one of 2, 3, 4" in refusal(bits=7)
    assert "do not fit a matrix of [300, 256] in groups of 32" in refusal(group_size=32)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop("model.layers.0.mlp.up_proj.scales")
    save_file(tensors, tmp_path / "model.safetensors")
    assert "missing tensor 'model.layers.0.mlp.up_proj.scales'" in refusal()


def compressed(
    fmt: str, symmetric: bool, strategy: str, bits: int = 4, dtype: str = "bfloat16"
) -> Any:
    """Returns a packer that is compressed-tensors' own, and the configuration it belongs to."""
    library = pytest.importorskip("compressed_tensors", reason="needs the dev extra")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    assert library
    size = 128 if strategy == "group" else None
    args = QuantizationArgs(
        num_bits=bits, type="int", symmetric=symmetric, strategy=strategy, group_size=size
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=args)

    def pack(weight: torch.Tensor, module: str) -> dict[str, torch.Tensor]:
        n, k = weight.shape
        n_groups = k // size if size else 1
        grouped = weight.reshape(n, n_groups, -1)
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        if symmetric:
            scale = (grouped.abs().amax(2) / high).to(DTYPES[dtype])
            zero = torch.zeros_like(scale, dtype=torch.int8)
        else:
            width = grouped.amax(2) - grouped.amin(2)
            scale = (width / (high - low)).to(DTYPES[dtype])
            zero = (low - grouped.amin(2) / scale.float()).round().clamp(low, high).to(torch.int8)
        given = {"weight": weight.to(DTYPES[dtype]), "weight_scale": scale}
        if not symmetric:
            given["weight_zero_point"] = zero
        compressor = BaseCompressor.get_value_from_registry(fmt)
        parts = dict(compressor.compress(dict(given), scheme))
        wide = {**parts, "weight_scale": parts["weight_scale"].float()}
        whole = compressor.decompress(dict(wide), scheme)["weight"]
        return {**parts, "expected": whole.float()}

    return pack, {"quant_method": "compressed-tensors", "format": fmt}


@pytest.mark.parametrize(
    ("settings", "held"),
    [
        (("pack-quantized", True, "group"), "q4_0"),
        (("pack-quantized", True, "channel"), "q4_0"),
        (("pack-quantized", False, "group"), "q5_0"),
        (("pack-quantized", True, "group", 8), "q8_0"),
        (("pack-quantized", True, "group", 4, "float32"), "f32"),
        (("int-quantized", True, "channel", 8), "q8_0"),
        (("int-quantized", False, "channel", 8), "f32"),
    ],
)
def test_directories_of_compressed_tensors(tmp_path: Path, settings: Any, held: str) -> None:
    pack, stated = compressed(*settings)
    expected = write(tmp_path, pack, **stated)
    checkpoint = open_checkpoint(str(tmp_path))
    for name, values in expected.items():
        assert checkpoint.format(name).name == held
        got = float_rows(checkpoint, name, 0, len(values))
        np.testing.assert_allclose(got, values, rtol=1e-6, atol=1e-8)
        np.testing.assert_array_equal(float_rows(checkpoint, name, 9, 50), got[9:50])
    errors = measure_errors(checkpoint, Quantized(checkpoint, "keep"))
    assert len(errors) == (len(expected) if held == "f32" else 0)


def small_floats(fmt: str, size: int) -> Any:
    """Returns a packer that is compressed-tensors' own. size: of the groups that share a scale."""
    pytest.importorskip("compressed_tensors", reason="needs the dev extra")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.mx_utils import decompress_mx_scale
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    args = QuantizationArgs(
        num_bits=8 if fmt == "mxfp8-quantized" else 4, type="float", group_size=size,
        symmetric=True, strategy="tensor_group" if size == 16 else "group",
    )  # fmt: skip
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    highest = {"nvfp4": 6.0, "mxfp4": 6.0, "mxfp8": 448.0}[fmt[:5]]

    def pack(weight: torch.Tensor, module: str) -> dict[str, torch.Tensor]:
        n, k = weight.shape
        scale = weight.reshape(n, k // size, size).abs().amax(2) / highest
        given = {"weight": weight}
        if fmt.startswith("nvfp4"):
            given["weight_global_scale"] = (448.0 / scale.max()).reshape(1)
            scale = (scale * given["weight_global_scale"]).to(torch.float8_e4m3fn).float()
        else:
            scale = torch.exp2(scale.log2().ceil())
        compressor = BaseCompressor.get_value_from_registry(fmt)
        parts = dict(compressor.compress({**given, "weight_scale": scale}, scheme))
        codes = parts.get("weight")
        if codes is None:
            codes = unpack_fp4_from_uint8(parts["weight_packed"], n, k, torch.float32)
        kept = parts["weight_scale"]
        wide = decompress_mx_scale(kept) if kept.dtype == torch.uint8 else kept
        whole = parts.get("weight_global_scale")
        expected = dequantize(codes.float(), wide.float(), args=args, global_scale=whole)
        return {**parts, "expected": expected.float()}

    return pack


SMALL_FLOATS = [
    ("nvfp4-pack-quantized", 16, "f32"), ("mxfp4-pack-quantized", 32, "q5_0"),
    ("mxfp8-quantized", 32, "f32"),
]  # fmt: skip


@pytest.mark.parametrize(("fmt", "size", "held"), SMALL_FLOATS)
def test_small_floats_of_compressed_tensors(tmp_path: Path, fmt: str, size: int, held: str) -> None:
    """Also where one checkpoint mixes formats."""
    packers = {"mlp.up_proj": small_floats(fmt, size)}
    if fmt.startswith("mxfp4"):
        packers |= {"mlp.down_proj": small_floats("nvfp4-pack-quantized", 16)}
    stated = {"quant_method": "compressed-tensors", "format": "mixed-precision"}
    if len(packers) == 1:
        stated["format"] = fmt
    usual = packers["mlp.up_proj"]
    expected = write(tmp_path, lambda w, m: packers.get(m, usual)(w, m), **stated)
    checkpoint = open_checkpoint(str(tmp_path))
    for name, values in expected.items():
        form = "f32" if "down_proj" in name else held
        assert checkpoint.format(name).name == form
        got = float_rows(checkpoint, name, 0, len(values))
        np.testing.assert_array_equal(got, values)
        np.testing.assert_array_equal(float_rows(checkpoint, name, 9, 50), got[9:50])


def as_modelopt(pack: Any) -> Any:
    """Returns a packer that names parts as ModelOpt does, which multiplies with the last scale."""

    def named(weight: torch.Tensor, module: str) -> dict[str, torch.Tensor]:
        parts = pack(weight, module)
        return {
            "weight": parts["weight_packed"], "weight_scale": parts["weight_scale"],
            "weight_scale_2": 1 / parts["weight_global_scale"][0],
            "input_scale": torch.tensor(0.5), "expected": parts["expected"],
        }  # fmt: skip

    return named


def test_directories_of_modelopt(tmp_path: Path) -> None:
    pack = as_modelopt(small_floats("nvfp4-pack-quantized", 16))
    expected = write(tmp_path, pack, quant_method="modelopt", quant_algo="NVFP4")
    checkpoint = open_checkpoint(str(tmp_path))
    for name, values in expected.items():
        got = float_rows(checkpoint, name, 0, len(values))
        np.testing.assert_allclose(got, values, rtol=3 * 2**-24)  # an inverse and two products


def modelopt_fp8(weight: torch.Tensor, module: str) -> dict[str, torch.Tensor]:
    """Returns the parts that ModelOpt writes for FP8, and what numpy makes of them."""
    scale = weight.abs().amax() / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    bits = codes.view(torch.uint8).numpy().astype(np.int64)
    exponents, mantissas = bits >> 3 & 15, bits & 7
    sizes = np.where(
        exponents > 0, (1 + mantissas / 8) * 2.0 ** (exponents - 7), mantissas / 8 * 2.0**-6
    )
    values = np.where(bits >> 7, -sizes, sizes) * float(scale)
    parts = {
        "weight": codes,
        "weight_scale": scale,
        "input_scale": torch.tensor(0.02),
        "expected": torch.from_numpy(values.astype(np.float32)),
    }
    cache = {"self_attn.k_proj": "k_scale", "self_attn.v_proj": "v_scale"}
    return {**parts, cache[module]: torch.tensor(1.0)} if module in cache else parts


@pytest.mark.parametrize("is_old", [False, True])
def test_directories_of_modelopt_in_fp8(tmp_path: Path, is_old: bool) -> None:
    """Older ones state it in a file of their own."""
    stated = {"quant_method": "modelopt", "quant_algo": "FP8"}
    expected = write(tmp_path, modelopt_fp8, **stated, kv_cache_scheme=None)
    quantization = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    if is_old:
        config = json.loads((tmp_path / "config.json").read_text())
        del config["quantization_config"]
        (tmp_path / "config.json").write_text(json.dumps(config))
        old = {"producer": {"name": "modelopt"}, "quantization": quantization}
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(old))
    checkpoint = open_checkpoint(str(tmp_path))
    assert expected
    for name, values in expected.items():
        got = float_rows(checkpoint, name, 0, len(values))
        np.testing.assert_allclose(got, values, rtol=2**-23)


def without(pack: Any, part: str) -> Any:
    return lambda weight, module: {k: v for k, v in pack(weight, module).items() if k != part}


def halved(pack: Any, part: str) -> Any:
    return lambda weight, module: {
        k: v[:, : v.shape[1] // 2] if k == part else v for k, v in pack(weight, module).items()
    }


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("change", "fmt", "stated", "words"),
    [
        (lambda pack: without(pack, "weight_global_scale"), "nvfp4-pack-quantized", {},
         r"missing tensor .*weight_global_scale"),
        (lambda pack: halved(pack, "weight_scale"), "nvfp4-pack-quantized", {},
         r"scales of type F8_E4M3 and shape \[256, 12\] do not fit codes of type U8 and shape"),
        (lambda pack: halved(pack, "weight_scale"), "mxfp8-quantized", {},
         "expected one for each 32 weights of 8 bits"),
        (lambda pack: pack, "mxfp4-pack-quantized", {"format": "mxfp6-pack-quantized"},
         r"format is 'mxfp6-pack-quantized', only"),
        (lambda pack: pack, "mxfp4-pack-quantized",
         {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config is there, and nei"),
        (lambda pack: pack, "mxfp4-pack-quantized",
         {"transform_config": {"config_groups": {"u": {"type": "hadamard"}}}},
         "transform_config is there, and neither sparse nor rotated"),
        (lambda pack: pack, "mxfp4-pack-quantized",
         {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo is 'W4A8_AWQ', only"),
    ],
)  # fmt: skip
def test_small_floats_that_do_not_fit(
    tmp_path: Path, change: Any, fmt: str, stated: dict[str, Any], words: str
) -> None:
    pack = change(small_floats(fmt, 16 if fmt.startswith("nv") else 32))
    stated = {"quant_method": "compressed-tensors", "format": fmt, **stated}
    write(tmp_path, pack, **stated)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=words) as caught:
        open_checkpoint(str(tmp_path))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.robustness
def test_bitsandbytes_says_what_to_do(tmp_path: Path) -> None:
    stated = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    config = {**CONFIG, "quantization_config": stated}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=r"dequantise it with transformers"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("is_nested", [False, True])
def test_directories_of_bitsandbytes(tmp_path: Path, kind: str, is_nested: bool) -> None:
    functional = pytest.importorskip("bitsandbytes.functional", reason="needs the dev extra")

    def pack(weight: torch.Tensor, module: str) -> dict[str, torch.Tensor]:
        codes, state = functional.quantize_4bit(
            weight, blocksize=64, quant_type=kind, compress_statistics=is_nested
        )
        stored = {f"weight.{part}": value for part, value in state.as_dict(packed=True).items()}
        expected = functional.dequantize_4bit(codes, state)
        return {"weight": codes, **stored, "expected": expected.float()}

    stated = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
    expected = write(tmp_path, pack, **stated)
    checkpoint = open_checkpoint(str(tmp_path))
    for name, values in expected.items():
        got = float_rows(checkpoint, name, 0, len(values))
        np.testing.assert_allclose(got, values, rtol=2e-6, atol=1e-7)
        np.testing.assert_array_equal(float_rows(checkpoint, name, 9, 50), got[9:50])
    errors = measure_errors(checkpoint, Quantized(checkpoint, "keep"))
    assert len(errors) == len(expected)
    assert all(0 < error.relative_rms < 0.01 for error in errors)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop("model.layers.0.mlp.up_proj.weight.absmax")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing tensor .*up_proj.weight.absmax"):
        open_checkpoint(str(tmp_path))


def recorded(part: str) -> dict[str, Any]:
    """Returns the tensors of `mlx_experts.npz`, which MLX 0.32 packed and unpacked."""
    with np.load(Path(__file__).with_name("mlx_experts.npz")) as stored:
        return {name.partition(".")[2]: stored[name] for name in stored if name.startswith(part)}


@pytest.mark.parametrize(("mode", "held"), [("mxfp4", "q5_0"), ("nvfp4", "f32"), ("mxfp8", "f32")])
def test_small_floats_of_mlx(tmp_path: Path, mode: str, held: str) -> None:
    parts = recorded(mode)
    expected = parts.pop("expected")
    tensors = {f"m.{part}": torch.from_numpy(values) for part, values in parts.items()}
    save_file(tensors, tmp_path / "m")
    config = Fields({"quantization": {"mode": mode}}, "config.json", CheckpointError)
    matrix = mlx_matrix(dict(read_tensors(tmp_path / "m")), "m", config)
    assert matrix.format.name == held
    rows = np.array([3, 0, 31])
    np.testing.assert_array_equal(matrix.plain(rows).dequantize(), expected[rows])


EXPERTS = {
    "qwen3_moe": (
        "mlp.switch_mlp",
        "mlp.gate",
        {"num_experts": 2, "moe_intermediate_size": 32, "head_dim": 32},
    ),
    "mixtral": ("block_sparse_moe.switch_mlp", "block_sparse_moe.gate", {"num_local_experts": 2}),
    "granitemoe": (
        "block_sparse_moe.switch_mlp",
        "block_sparse_moe.router.layer",
        {"num_local_experts": 2},
    ),
}


@pytest.mark.parametrize("is_quantised", [True, False])
@pytest.mark.parametrize("family", EXPERTS)
def test_stacked_experts_of_mlx(tmp_path: Path, family: str, is_quantised: bool) -> None:
    """Names are those that mlx-lm 0.32 writes; it leaves the size of groups null in mixtures."""
    stem, router, own = EXPERTS[family]
    parts = recorded("experts")
    expected = parts.pop("expected")
    stacked = {name: torch.from_numpy(values) for name, values in parts.items()}
    if not is_quantised:
        stacked = {"weight": torch.from_numpy(expected)}
    layer, hidden = "model.layers.0", 64
    tensors = {
        f"{layer}.{stem}.{p}.{k}": v for p in ("gate_proj", "up_proj") for k, v in stacked.items()
    }
    tensors[f"{layer}.{stem}.down_proj.weight"] = torch.randn(2, hidden, 32) * 0.05
    tensors[f"{layer}.{router}.weight"] = torch.randn(2, hidden)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        tensors[f"{layer}.self_attn.{name}.weight"] = torch.randn(hidden, hidden)
    if family == "qwen3_moe":
        tensors |= {f"{layer}.self_attn.{n}_norm.weight": torch.ones(32) for n in "qk"}
    norms = ("model.norm", f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
    tensors |= {f"{name}.weight": torch.ones(hidden) for name in norms}
    tensors["model.embed_tokens.weight"] = torch.randn(300, hidden)
    save_file(
        {name: value.contiguous().clone() for name, value in tensors.items()},
        tmp_path / "model.safetensors",
    )
    of_gates = {f"{layer}.{stem}.gate_proj": {"group_size": None, "bits": 4, "mode": "affine"}}
    config = {
        **CONFIG, **own, "model_type": family, "hidden_size": hidden, "intermediate_size": 32,
        "num_attention_heads": 2, "num_key_value_heads": 2, "num_experts_per_tok": 1,
        "num_hidden_layers": 1, "tie_word_embeddings": True,
        "quantization": {"group_size": 64, "bits": 4, **of_gates},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    checkpoint = open_checkpoint(str(tmp_path))
    for part in ("gate_proj", "up_proj"):
        name = f"layers.0.mlp.experts.{part}.weight"
        got = float_rows(checkpoint, name, 0, 64)
        np.testing.assert_allclose(got, expected.reshape(64, hidden), rtol=1e-6, atol=1e-8)
        np.testing.assert_array_equal(float_rows(checkpoint, name, 20, 45), got[20:45])
        stand_in = checkpoint.stand_in(name)
        assert (stand_in.name if stand_in else None) == ("q8_0" if is_quantised else None)
