"""Offsets of keys: measured on a graph, set in it, and worth it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgedec.export.kv_panels import kv_place
from edgedec.export.quantising.key_offsets import measure_key_offsets
from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.graph import attributes
from edgedec.export.to_onnx.key_offsets import set_key_offsets
from edgedec.export.to_onnx.messages import ModelProto, save_model
from edgedec.export.verifying.kv_error import measure_kv_error
from edgedec.kernels.library import has_library
from edgedec.models.families import weight_shapes

pytestmark = pytest.mark.skipif(not has_library(), reason="the kernel library is not built")

TOKENS = [int(t) for t in np.random.default_rng(3).integers(0, 83, 300)]
BIAS = 20


@pytest.fixture
def source(make_source: Any) -> Any:
    """Biases of keys that are far larger than keys, as Qwen's are."""
    source = make_source(has_qkv_bias=True, max_positions=400)
    for i in range(source.config.n_layers):
        source.weights[f"layers.{i}.self_attn.k_proj.bias"] *= BIAS
    return source


def graph_of(source: Any, kv_format: str) -> ModelProto:
    shapes = weight_shapes(source.config)
    formats = {name: source.format(name) for name, shape in shapes.items() if len(shape) == 2}
    return fuse(emit_portable(source.config, ()), source.config, formats, kv_format=kv_format)


def write(graph: ModelProto, source: Any, folder: Path) -> Path:
    folder.mkdir()
    write_weights(graph, source, folder)
    save_model(graph, folder / "model.onnx")
    return folder / "model.onnx"


def offsets_of(source: Any, folder: Path) -> dict[int, npt.NDArray[np.float32]]:
    graph = write(graph_of(source, "float16"), source, folder)
    return measure_key_offsets(graph, source.config, TOKENS)


def test_they_are_the_large_biases(source: Any, tmp_path: Path) -> None:
    config, offsets = source.config, offsets_of(source, tmp_path / "float16")
    for layer in range(config.n_layers):
        offset = offsets[layer]
        bias = source.weights[f"layers.{layer}.self_attn.k_proj.bias"].reshape(offset.shape)
        low, high = np.split(np.abs(bias), 2, axis=-1)
        is_large = np.tile(np.hypot(low, high) > BIAS / 2, 2)
        error = np.linalg.norm(offset[is_large] - bias[is_large])
        assert 0 < error < 0.1 * np.linalg.norm(bias[is_large])


@pytest.mark.parametrize("kv_format", ["int8", "k5v4"])
def test_codes_of_such_keys_cost_far_less(source: Any, tmp_path: Path, kv_format: str) -> None:
    graph, config = graph_of(source, kv_format), source.config
    plain = measure_kv_error(write(graph, source, tmp_path / "plain"), config, TOKENS)
    set_key_offsets(graph, config, offsets_of(source, tmp_path / "float16"))
    shifted = measure_kv_error(write(graph, source, tmp_path / "shifted"), config, TOKENS)
    assert shifted["kl_nats"] < plain["kl_nats"] / 5


def test_all_nodes_over_the_same_keys_have_them(source: Any) -> None:
    config = source.config
    graph = graph_of(source, "int8")
    place = kv_place(config, 2)
    set_key_offsets(graph, config, {2: np.ones((config.n_kv_heads, config.head_size), np.float32)})
    for node in graph.graph.node:
        if node.op_type == "Attention":
            is_over = (node.input[6], attributes(node)["layer"]) == (place.caches[0], place.layer)
            assert (node.input[12:] == ["layers.2.self_attn.key_offsets"]) == is_over


def test_a_short_text_gives_none(source: Any, tmp_path: Path) -> None:
    graph = write(graph_of(source, "float16"), source, tmp_path / "float16")
    assert measure_key_offsets(graph, source.config, TOKENS[:20]) == {}
