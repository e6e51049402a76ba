"""OpenVINO graphs: read, checked, compiled for a device, and run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from edgedec.models.config import ModelConfig
from edgedec.models.errors import BundleError, SessionError
from edgedec.models.graph import (
    LOGITS,
    POSITION_IDS,
    ROW_STATS,
    WEIGHTS_BESIDE,
    Capabilities,
    GraphContract,
    hidden_port,
    past_port,
    stats_port,
)
from edgedec.runtime.backends import running_passes as running_passes
from edgedec.runtime.backends.graph_checks import check_names, check_shape, one_line
from edgedec.runtime.backends.model_facts import GraphToRun, ModelFacts
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.row_stats import RowStats
from edgedec.runtime.sequences.rows import Rows


def read_graph(graph: Path) -> ov.Model:
    """Returns ``graph``, its weights mapped; raises a BundleError where OpenVINO refuses it."""
    try:
        return ov.Core().read_model(graph, graph.with_name(WEIGHTS_BESIDE))
    except RuntimeError as error:
        raise BundleError(
            f"OpenVINO refuses {graph} ({one_line(error)}); check it with "
            "`edgedec inspect --verify`, or export the model again"
        ) from None


def compile_graph(graph: ov.Model, device: str, kv_format: str, threads: int) -> ov.CompiledModel:
    """Returns ``graph`` compiled for ``device``.

    threads: of a CPU.

    Raises:
        BundleError: The device refuses the graph.
    """
    properties: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
    if device == "CPU":
        properties |= {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": kv_format.replace("float", "f"),
        }
    try:
        return ov.Core().compile_model(graph, device, properties)
    except RuntimeError as error:
        raise BundleError(
            f"OpenVINO cannot compile the graph for {device} ({one_line(error)}): see its driver "
            "with `edgedec doctor`, or use --device CPU"
        ) from None


def check_ports(
    graph: Path, opened: ov.Model, contract: GraphContract, config: ModelConfig
) -> None:
    """Raises a BundleError unless the graph has the ports and states that are stated."""
    check_names(graph, "inputs", [port.any_name for port in opened.inputs], contract.inputs)
    check_names(graph, "outputs", [port.any_name for port in opened.outputs], contract.outputs)
    shapes = {LOGITS: (None, None, config.n_logits)} | {
        hidden_port(i): (None, None, config.hidden_size) for i in contract.can.hidden
    }
    for port in opened.outputs:
        sizes = [size.get_length() if size.is_static else None for size in port.partial_shape]
        check_shape(graph, port.any_name, sizes, shapes.get(port.any_name))
    states = [variable.info.variable_id for variable in opened.get_variables()]
    names = [past_port(i, part) for i in range(config.n_layers) for part in ("key", "value")]
    check_names(graph, "states", states, names)


class PlacedModel(ModelFacts):
    """The part of a `Model` that its place decides: one of OpenVINO's devices, and processors."""

    def __init__(self, graph: GraphToRun) -> None:
        super().__init__(graph)
        self.device = graph.contract.providers[0]
        self._threads = graph.threads

    def rows_at(self, positions: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
        """Returns the inputs that say where the tokens of a pass are. positions: [T]."""
        if POSITION_IDS in self.contract.inputs:  # of graphs that hold their tables
            return {POSITION_IDS: positions[np.newaxis]}
        return self.tables.rows_at(positions)

    def compiled(self, opened: ov.Model) -> ov.CompiledModel:
        """Returns a graph compiled for the device; a BundleError where that refuses it."""
        with self.affinity.held():
            return compile_graph(opened, self.device, self.contract.kv.format, self._threads)


def run_pass(
    request: ov.InferRequest, inputs: dict[str, npt.NDArray[Any]], model: PlacedModel
) -> None:
    """Runs a graph over ``inputs``.

    Raises:
        SessionError: OpenVINO fails.
        KeyboardInterrupt: The pass was ended.
    """
    run = _Run(request)
    running_passes.begin(run)
    try:
        with model.affinity.held():
            request.start_async(inputs, share_inputs=True)  # nothing else can be cancelled
            request.wait()
    except RuntimeError as error:
        if run.is_ended:
            raise KeyboardInterrupt from None
        raise SessionError(
            f"OpenVINO could not run the model on {model.device}: {one_line(error)}"
        ) from None
    finally:
        running_passes.finish(run)


def rows_of(request: ov.InferRequest, pass_: Pass, can: Capabilities) -> Rows:
    """Returns what the latest pass gave, in memory that the next one overwrites."""

    def output(name: str) -> Any:
        return request.get_tensor(name).data

    logits = output(LOGITS)[0]
    hidden = {layer: output(hidden_port(layer))[0] for layer in pass_.hidden_layers}
    if not can.row_stats:
        return Rows(logits, hidden)
    stats = RowStats(**{name: output(stats_port(name)) for name in ROW_STATS})
    return Rows(logits if pass_.with_logits else logits[:0], hidden, stats)


class _Run:
    """One pass; `running_passes.end_passes` ends it from another thread."""

    def __init__(self, request: ov.InferRequest) -> None:
        self._request = request
        self.is_ended = False

    def end(self) -> None:
        """Ends the pass, between two nodes of its graph."""
        self.is_ended = True
        self._request.cancel()
