"""OpenVINO's operators, weights of 4 and 8 bits: for its plugins for CPU, GPU and NPU."""

from __future__ import annotations

from typing import Any

import openvino as ov

from edgedec.export.phases.recipe_model import RecipeModel
from edgedec.models.families import matrices
from edgedec.models.graph import (
    ROUNDING_GAP,
    WEIGHTS_BESIDE,
    Capabilities,
    GraphContract,
    KVLayout,
    stats_port,
)
from edgedec.models.quant import FORMATS
from edgedec.targets.openvino.export_emit import emit_openvino
from edgedec.targets.openvino.export_runner import OpenVinoRunner
from edgedec.targets.openvino.export_stored import StoredWeights

GRAPH_NAME = "model.xml"
WEIGHTS_NAMES = (WEIGHTS_BESIDE,)

_STORED = "stored.tmp"
_KV_BYTES = {"float16": 2, "float32": 4}


def pack(model: RecipeModel) -> None:
    """Weights as the graph's constants are, in a file of their own, which `emit` maps.

    Experts, and rows that are no whole number of groups, are multiplied as float32.
    """
    config, formats = model.source.config, model.formats
    for name, (_, k) in matrices(config).items():
        if ".experts." in name or k % formats[name].group:
            formats[name] = FORMATS["f32"]
    model.graph = StoredWeights(config, formats)
    report = model.report
    model.graph.write(model.source, model.folder / _STORED, lambda done, n, _: report(done, n))


def emit(model: RecipeModel) -> None:
    """The graph of the family's recipe, and its weights beside it."""
    stored = model.folder / _STORED
    constants = model.graph.constants(stored)
    graph = emit_openvino(model.source.config, model.graph, constants, model.hidden_layers)
    model.graph = port_names(graph)
    ov.serialize(graph, model.folder / GRAPH_NAME, model.folder / WEIGHTS_BESIDE)
    stored.unlink()


PHASES = (("pack", pack), ("emit", emit))


def port_names(graph: ov.Model) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names of the inputs, and of the outputs, of ``graph``."""
    inputs = tuple(port.any_name for port in graph.inputs)
    return inputs, tuple(port.any_name for port in graph.outputs)


def contract(model: RecipeModel) -> GraphContract:
    """Returns what the graph of ``model`` takes, gives and can do."""
    config, device = model.source.config, model.device
    inputs, outputs = model.graph
    n_numbers = config.n_kv_numbers
    return GraphContract(
        compiler="openvino",
        backend="openvino",
        triple=device.triple,
        providers=device.providers,
        inputs=inputs,
        outputs=outputs,
        kv=KVLayout("states", model.kv_format, row_nbytes=_KV_BYTES[model.kv_format] * n_numbers),
        can=Capabilities(
            trees=True,
            row_stats=stats_port("argmax") in outputs,
            hidden=model.hidden_layers,
            row_gap=ROUNDING_GAP,
        ),
    )


def open_graph(model: RecipeModel) -> OpenVinoRunner:
    """Returns a way to run the written graph."""
    return OpenVinoRunner(model.folder / GRAPH_NAME, model.source.config, model.kv_format)


def measure(model: RecipeModel) -> dict[str, Any]:
    """Returns nothing: there is no more to measure."""
    return {}
