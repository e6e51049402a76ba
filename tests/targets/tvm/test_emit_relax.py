"""What recipes ask for beyond a plain decoder: the compiled graph against the fused one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.export.kv_panels import kv_panels
from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.messages import save_model
from edgedec.export.to_onnx.runners import FusedRunner
from edgedec.models.config import LayerConfig
from edgedec.models.families import weight_shapes
from edgedec.models.graph import Capabilities, GraphContract

pytest.importorskip("tvm", reason="needs the extra tvm")

from edgedec.system.machine import machine_triple
from edgedec.targets.tvm.export_build import build_library, copy_runtime
from edgedec.targets.tvm.export_emit import emit_relax
from edgedec.targets.tvm.export_runner import ProgramRunner

pytestmark = pytest.mark.parity

CONTEXT = 64
MIXTURE = {"family": "qwen3_moe", "has_qk_norm": True, "n_experts": 5, "n_experts_used": 2}
MODELS: dict[str, dict[str, Any]] = {
    "windows": {"layers": tuple(LayerConfig(48, 1e4, window=w) for w in (6, 0, 4))},
    "norms of heads": {"family": "qwen3", "has_qk_norm": True},
    "experts": MIXTURE,
    "experts with normed weights": {**MIXTURE, "is_routing_normed": True},
    "a tied head": {"is_head_tied": True},
}


def compiled(source: Any, kv_format: str, folder: Path) -> ProgramRunner:
    """Returns the compiled graph, over the weights file that is in ``folder``."""
    shapes = weight_shapes(source.config)
    formats = {name: source.format(name) for name, s in shapes.items() if len(s) == 2}
    graph = emit_relax(source.config, formats, (), kv_format)
    build_library(graph, machine_triple(), folder / "model.so")
    copy_runtime(folder)
    layout = kv_panels(source.config, kv_format)
    contract = GraphContract(
        "tvm", "tvm", "any", (), graph.inputs, graph.outputs, layout, Capabilities()
    )
    return ProgramRunner(folder / "model.so", source.config, contract, CONTEXT)


def fused(source: Any, kv_format: str, folder: Path) -> FusedRunner:
    """Returns the fused graph, with its weights in ``folder``."""
    shapes = weight_shapes(source.config)
    formats = {name: source.format(name) for name, s in shapes.items() if len(s) == 2}
    portable = emit_portable(source.config)
    graph = fuse(portable, source.config, formats, kv_format=kv_format)
    write_weights(graph, source, folder)
    save_model(graph, folder / "model.onnx")
    return FusedRunner(folder / "model.onnx", source.config, CONTEXT)


@pytest.mark.parametrize("kv_format", ["float16", "int8"])
@pytest.mark.parametrize("fields", MODELS.values(), ids=MODELS)
def test_logits_are_the_same_bits(
    make_source: Any, fields: dict[str, Any], kv_format: str, tmp_path: Path
) -> None:
    source = make_source(**fields)
    runners = (fused(source, kv_format, tmp_path), compiled(source, kv_format, tmp_path))
    tokens = [3, 80, 7, 7, 41, 11, 2, 60, 33, 5, 9, 1]
    for nodes, parents, n_past in (
        (tokens, range(-1, len(tokens) - 1), 0),
        ([8, 9, 10, 11], [-1, -1, 1, 1], len(tokens)),
        ([8], [-1], 5),
    ):
        expected, found = (runner.compute_logits(nodes, parents, n_past) for runner in runners)
        assert np.abs(expected).max() > 0.1
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
