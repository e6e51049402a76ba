"""Layers that differ, norms of heads, and sub-layers that cannot be gated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.graph import GraphEditor
from edgedec.export.to_onnx.make import make_node
from edgedec.export.to_onnx.messages import ModelProto, NodeProto
from edgedec.export.to_onnx.passes import pipeline
from edgedec.export.to_onnx.runners import FusedRunner, PortableRunner
from edgedec.kernels.library import has_library
from edgedec.models.config import LayerConfig
from edgedec.models.errors import ConfigError, UnsupportedModelError
from edgedec.models.families import matrices, weight_shapes
from edgedec.models.reference import ReferenceModel

TOKENS = [3, 80, 7, 7, 41, 0, 12, 66, 5]
CONTEXT = 32
LAYERS = (LayerConfig(48, 1e4), LayerConfig(20, 0.0), LayerConfig(80, 3e5))
CASES = [
    pytest.param({"layers": LAYERS}, id="layers"),
    pytest.param({"has_qk_norm": True}, id="qk_norm"),
    pytest.param({"has_qk_norm": True, "has_qkv_bias": True, "layers": LAYERS}, id="all"),
]

pytestmark = pytest.mark.parity


def formats_of(source: Any) -> dict[str, Any]:
    return {name: source.format(name) for name in matrices(source.config)}


def fused_graph(source: Any) -> ModelProto:
    return fuse(emit_portable(source.config), source.config, formats_of(source))


def expected(source: Any, gates: list[bool] | None = None) -> Any:
    return ReferenceModel(source).forward(TOKENS, layer_gates=gates).logits


@pytest.mark.parametrize("fields", CASES)
def test_portable(make_source: Any, write_graph: Any, fields: dict[str, Any]) -> None:
    source = make_source(**fields)
    graph = write_graph(emit_portable(source.config), source)
    runner = PortableRunner(graph, source.config)
    for start, stop in ((0, 5), (5, 6), (6, 9)):
        logits = runner.compute_logits(
            TOKENS[start:stop], range(-1, stop - start - 1), n_past=start
        )
        np.testing.assert_allclose(logits, expected(source)[start:stop], atol=2e-5)


@pytest.mark.skipif(not has_library(), reason="the kernel library is not built")
@pytest.mark.parametrize("fields", CASES)
def test_fused(make_source: Any, write_graph: Any, fields: dict[str, Any]) -> None:
    source = make_source(**fields)
    runner = FusedRunner(write_graph(fused_graph(source), source), source.config, CONTEXT)
    whole = runner.compute_logits(TOKENS, range(-1, len(TOKENS) - 1))
    np.testing.assert_allclose(whole, expected(source), atol=1e-2)
    for start in (1, 4, 8):  # a row does not depend on the others of its pass
        alone = runner.compute_logits(TOKENS[start : start + 1], [-1], n_past=start)
        np.testing.assert_array_equal(alone[0], whole[start])


@pytest.mark.skipif(not has_library(), reason="the kernel library is not built")
@pytest.mark.parametrize("fields", CASES)
def test_gates(make_source: Any, write_graph: Any, fields: dict[str, Any]) -> None:
    source = make_source(**fields)
    runner = FusedRunner(write_graph(fused_graph(source), source), source.config, CONTEXT)
    assert runner.layer_gates is not None
    for closed in ([0], [2, 5], range(6)):
        gates = [index not in closed for index in range(6)]
        runner.layer_gates[:] = gates
        logits = runner.compute_logits(TOKENS, range(-1, len(TOKENS) - 1))
        np.testing.assert_allclose(logits, expected(source, gates), atol=1e-2)


def test_the_reference_knows_the_difference(make_source: Any) -> None:
    plain = make_source()
    turned = make_source(layers=tuple(LayerConfig(48, theta) for theta in (1e4, 1e4, 0.0)))
    assert weight_shapes(plain.config) == weight_shapes(turned.config)
    assert np.abs(expected(plain) - expected(turned)).max() > 1e-2
    shapes = weight_shapes(make_source(layers=LAYERS).config)
    assert shapes["layers.1.mlp.down_proj.weight"] == (32, 20)
    assert shapes["layers.2.mlp.up_proj.weight"] == (80, 32)


def test_as_many_layers_as_stated(make_source: Any) -> None:
    with pytest.raises(ConfigError, match="layers are 2, expected none or 3"):
        make_source(layers=LAYERS[:2])


def test_layers_that_say_what_the_model_says(make_source: Any) -> None:
    alike = make_source(layers=(LayerConfig(48, 1e4),) * 3)
    assert (expected(alike) == expected(make_source())).all()


@pytest.mark.skipif(not has_library(), reason="the kernel library is not built")
@pytest.mark.parametrize("half", ["self_attn.o_proj", "mlp.down_proj"])
def test_a_residual_that_could_not_be_folded_is_refused(make_source: Any, half: str) -> None:
    """As of a recipe that does something to a sub-layer's output before it is added."""
    source = make_source()
    model = emit_portable(source.config)
    editor = GraphEditor(model)
    (product,) = [node for node in editor.nodes("MatMul") if f"layers.1.{half}" in node.name]
    changed = NodeProto()
    changed.CopyFrom(product)
    changed.output[0] = "before"
    between = make_node("Tanh", ["before"], list(product.output), name="between")
    editor.replace([product], [changed, between])
    editor.finish()
    with pytest.raises(UnsupportedModelError, match=f"layer gates: .*layers.1.{half}.* unwritten"):
        for _, run in pipeline(source.config, formats_of(source)):
            run(model)
