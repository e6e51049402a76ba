"""Graphs of ONNX Runtime's own operators: storage formats keep their weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.export.to_onnx.graph import attributes, op_counts
from edgedec.export.to_onnx.nbits import BlockLayout
from edgedec.export.to_onnx.runners import PortableRunner
from edgedec.export.weights_file import WEIGHTS_FILE
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.graph import ATTENTION_BIAS, LOGITS
from edgedec.models.quant import EVEN_FORMATS, FORMATS, PlainTensor
from edgedec.models.reference import ReferenceModel
from edgedec.targets.ort import export_contrib as contrib

from ...export.conftest import even_weights

GgufMaker = Callable[..., Path]
TOKENS = [7, 200, 31, 31, 8, 150, 99, 4, 260, 61]
TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16"]
QUANTISED = [name for name in EVEN_FORMATS if not FORMATS[name].is_float]


def random_plain(name: str, n: int, k: int) -> PlainTensor:
    """Returns a matrix of random codes and scales in one format."""
    fmt, rng = FORMATS[name], np.random.default_rng(3)
    n_scales = -(-k // 256) if "k" in name else -(-k // 32)

    def scales() -> Any:
        return rng.uniform(-0.1, 0.1, (n, n_scales)).astype(np.float16)

    n_inner = -(-k // fmt.group)
    is_signed = name == "q6_k"
    inner = rng.integers(-9 if is_signed else 0, 60, (2, n, n_inner))
    return PlainTensor(
        fmt, rng.integers(0, 1 << fmt.bits, (n, k)).astype(np.uint8), scales(), scales(),
        inner[0].astype(np.int8 if is_signed else np.uint8), inner[1].astype(np.uint8),
    )  # fmt: skip


@pytest.mark.parametrize("name", QUANTISED)
def test_blocks_read_back_as_the_weights(name: str) -> None:
    n, k = 5, 512 if "k" in name else 72
    plain = random_plain(name, n, k)
    layout = BlockLayout(plain.format, n, k)
    codes = layout.codes(plain)
    if layout.bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(n, -1)
    assert codes.shape == (n, layout.n_blocks * layout.block)
    signed = codes.astype(np.float32) - np.float32(1 << layout.bits - 1)
    assert not signed[:, k:].any()
    weights = np.repeat(plain.groups()[0], layout.block, axis=1) * signed
    if layout.format.has_minimum:
        weights += np.repeat(layout.offsets(plain), 32, axis=1)
        np.testing.assert_allclose(weights[:, :k], plain.dequantize(), rtol=0, atol=2e-5)
    else:
        np.testing.assert_array_equal(weights[:, :k], plain.dequantize())


@pytest.mark.parametrize("type_name", TYPES)
def test_logits_are_those_of_the_checkpoint(
    make_gguf: GgufMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_name: str
) -> None:
    monkeypatch.setattr(contrib, "_INT8_ACTIVATIONS", 1)  # activations stay float32
    path = make_gguf("qwen2", type_name)
    entry = export(ExportConfig(str(path), tmp_path / "b", device_target="ort")).manifest.target
    runner = PortableRunner(tmp_path / "b" / entry.graph, entry.config, is_prepacked=True)
    expected = ReferenceModel(open_checkpoint(str(path))).forward(TOKENS).logits
    logits = runner.compute_logits(TOKENS, range(-1, len(TOKENS) - 1))
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("type_name", ["Q4_1", "Q8_0", "F16"])
def test_in_float16_all_numbers_are(make_gguf: GgufMaker, tmp_path: Path, type_name: str) -> None:
    path = make_gguf("llama", type_name, weights=even_weights())
    formats: tuple[str, ...] = ("float32", "float16")
    for kv_format in formats:
        wanted = ExportConfig(
            str(path), tmp_path / kv_format, device_target="ort", kv_format=kv_format
        )
        entry = export(wanted).manifest.target
        graph = onnx.load(tmp_path / kv_format / entry.graph, load_external_data=False).graph
        element = TensorProto.DataType.Value(kv_format.replace("float32", "float").upper())
        floats = {TensorProto.FLOAT, TensorProto.FLOAT16}
        stored = {t.data_type for t in graph.initializer if t.data_location}
        assert stored & floats == {element}
        ports = {v.name: v.type.tensor_type.elem_type for v in [*graph.input, *graph.output]}
        assert {ports[name] for name in entry.contract.past_ports} == {element}
        assert ports[ATTENTION_BIAS] == ports[LOGITS] == TensorProto.FLOAT
    short, long = (tmp_path / n / "target" / WEIGHTS_FILE for n in reversed(formats))
    assert short.stat().st_size < long.stat().st_size


def test_matrices_that_read_the_same_are_one(make_gguf: GgufMaker, tmp_path: Path) -> None:
    config = ExportConfig(str(make_gguf("qwen2", "Q4_1")), tmp_path / "b", device_target="ort")
    entry = export(config).manifest.target
    graph = onnx.load(tmp_path / "b" / entry.graph, load_external_data=False)
    counts, n_layers = op_counts(graph), entry.config.n_layers
    assert counts["MatMulNBits"] == 4 * n_layers + 1
    assert counts["GroupQueryAttention"] == n_layers
    assert counts["SkipSimplifiedLayerNormalization"] == 2 * n_layers - 1
    assert counts["GatherBlockQuantized"] == 1
    for node in graph.graph.node:
        if node.op_type == "MatMulNBits":
            assert (attributes(node)["bits"], attributes(node)["block_size"]) == (4, 32)


def test_a_tied_head_reads_the_codes_of_the_embedding(make_gguf: GgufMaker, tmp_path: Path) -> None:
    path = make_gguf("llama", "Q8_0", weights={"output.weight": None})
    entry = export(ExportConfig(str(path), tmp_path / "b", device_target="ort")).manifest.target
    graph = onnx.load(tmp_path / "b" / entry.graph, load_external_data=False).graph
    places = [
        {entry.key: entry.value for entry in tensor.external_data}
        for tensor in graph.initializer
        if tensor.name in ("embed_tokens.weight.codes", "embed_tokens.weight.table")
    ]
    assert len(places) == 2
    assert places[0] == places[1]


def test_heads_that_the_operator_does_not_take(make_gguf: GgufMaker, tmp_path: Path) -> None:
    weights = {
        f"blk.{i}.attn_{part}.weight": np.zeros(shape, np.float32)
        for i in range(2)
        for part, shape in (("q", (96, 256)), ("k", (48, 256)), ("v", (48, 256)),
                            ("output", (256, 96)))
    }  # fmt: skip
    sizes = {"llama.attention.key_length": 24, "llama.attention.value_length": 24}
    path = make_gguf("llama", weights=weights, metadata={**sizes, "llama.rope.dimension_count": 24})
    with pytest.raises(UnsupportedModelError, match=r"heads of 24 .*--target portable"):
        export(ExportConfig(str(path), tmp_path / "b", device_target="ort"))
    assert not (tmp_path / "b").exists()
