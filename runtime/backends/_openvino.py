"""OpenVINO graphs: opened for a device, and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openvino as ov

from edgedec.models.config import ModelConfig
from edgedec.models.errors import BundleError
from edgedec.models.graph import (
    LOGITS,
    WEIGHTS_BESIDE,
    GraphContract,
    KVFormat,
    hidden_port,
    past_port,
)
from edgedec.runtime.backends._graph_checks import check_names, check_shape, one_line


def open_graph(graph: Path, device: str, kv_format: KVFormat, threads: int) -> ov.CompiledModel:
    """Returns ``graph`` compiled for ``device``.

    threads: of a CPU.

    Raises:
        BundleError: OpenVINO, or the device, refuses the graph.
    """
    properties: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
    if device == "CPU":
        properties |= {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": kv_format.replace("float", "f"),
        }
    try:
        core = ov.Core()
        model = core.read_model(graph, graph.with_name(WEIGHTS_BESIDE))
        return core.compile_model(model, device, properties)
    except RuntimeError as error:
        raise BundleError(
            f"OpenVINO refuses {graph} on {device} ({one_line(error)}); check it with "
            "`edgedec inspect --verify`, look at `edgedec doctor`, or export the model again"
        ) from None


def check_ports(
    graph: Path, compiled: ov.CompiledModel, contract: GraphContract, config: ModelConfig
) -> None:
    """Raises a BundleError unless the graph has the ports and states that are stated."""
    check_names(graph, "inputs", [port.any_name for port in compiled.inputs], contract.inputs)
    check_names(graph, "outputs", [port.any_name for port in compiled.outputs], contract.outputs)
    shapes = {LOGITS: (None, None, config.n_logits)} | {
        hidden_port(i): (None, None, config.hidden_size) for i in contract.can.hidden
    }
    for port in compiled.outputs:
        sizes = [size.get_length() if size.is_static else None for size in port.partial_shape]
        check_shape(graph, port.any_name, sizes, shapes.get(port.any_name))
    states = [state.name for state in compiled.create_infer_request().query_state()]
    stated = [past_port(i, part) for i in range(config.n_layers) for part in ("key", "value")]
    check_names(graph, "states", states, stated)
