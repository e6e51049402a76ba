"""ONNX Runtime's own operators, weights of 4 and 8 bits: for any of its providers."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgedec.export.phases.recipe_model import RecipeModel
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.graph import port_names
from edgedec.export.to_onnx.messages import TensorProto, save_model
from edgedec.export.to_onnx.runners import PortableRunner
from edgedec.export.weights_file import WEIGHTS_FILE
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.graph import ROUNDING_GAP, Capabilities, GraphContract, KVLayout, stats_port
from edgedec.models.quant import FORMATS
from edgedec.targets.ort.export_contrib import block_chunks, emit_contrib, share_tables

GRAPH_NAME = "model.onnx"
WEIGHTS_NAMES = (WEIGHTS_FILE,)

_ELEMENTS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
"""What a graph computes in, by the format of its KV cache, for its attention takes no other."""

_HEAD_STEP = 16


def emit(model: RecipeModel) -> None:
    """The graph of the family's recipe. Experts are multiplied all at once, as floats."""
    config = model.source.config
    if config.head_size % _HEAD_STEP:
        raise UnsupportedModelError(
            f"{model.source.name} has heads of {config.head_size} numbers, ONNX Runtime's "
            f"attention takes multiples of {_HEAD_STEP}: export with --target portable"
        )
    model.formats |= {name: FORMATS["f32"] for name in model.formats if ".experts." in name}
    element = _ELEMENTS[model.kv_format]
    model.graph = emit_contrib(config, model.formats, model.hidden_layers, element)


def pack(model: RecipeModel) -> None:
    """Weights as the graph reads them, then the graph, which refers to them."""
    report, source = model.report, model.source
    chunks = block_chunks(model.graph, source, model.formats)
    write_weights(model.graph, source, model.folder, lambda done, n, _: report(done, n), chunks)
    share_tables(model.graph)
    save_model(model.graph, model.folder / GRAPH_NAME)


PHASES = (("emit", emit), ("pack", pack))


def contract(model: RecipeModel) -> GraphContract:
    """Returns what the graph of ``model`` takes, gives and can do."""
    config, device = model.source.config, model.device
    outputs = port_names(model.graph.graph.output)
    n_numbers = config.n_kv_numbers
    row_nbytes = np.dtype(model.kv_format).itemsize * n_numbers
    return GraphContract(
        compiler="ort",
        backend="ort",
        triple=device.triple,
        providers=device.providers,
        inputs=port_names(model.graph.graph.input),
        outputs=outputs,
        kv=KVLayout("rows", model.kv_format, row_nbytes=row_nbytes),
        can=Capabilities(
            trees=True,
            row_stats=stats_port("argmax") in outputs,
            hidden=model.hidden_layers,
            row_gap=ROUNDING_GAP,
        ),
    )


def open_graph(model: RecipeModel) -> PortableRunner:
    """Returns a way to run the written graph."""
    return PortableRunner(model.folder / GRAPH_NAME, model.source.config, is_prepacked=True)


def measure(model: RecipeModel) -> dict[str, Any]:
    """Returns nothing: there is no more to measure."""
    return {}
