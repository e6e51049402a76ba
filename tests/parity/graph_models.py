"""Models over graphs that no bundle describes: what they can do is read off the graph."""

from __future__ import annotations

from pathlib import Path

import onnx

from edgedec.export.kv_panels import kv_panels
from edgedec.export.to_onnx.graph import port_names
from edgedec.models.config import ModelConfig
from edgedec.models.graph import (
    ANY_TRIPLE,
    ATTENTION_BIAS,
    ENTRY,
    K_CACHE,
    LAYER_GATES,
    Capabilities,
    GraphContract,
    KVLayout,
    hidden_port,
    stats_port,
)
from edgedec.runtime.backends.model_facts import GraphToRun
from edgedec.runtime.sequences.affinity import Affinity
from edgedec.runtime.sequences.model import Model
from edgedec.targets.cpu.run_fused import FusedModel
from edgedec.targets.ort.run_ort import OrtModel
from edgedec.targets.portable.run_portable import PortableModel


def contract_of(graph: Path, config: ModelConfig) -> GraphContract:
    """Returns the contract that the exporter would state of a graph it wrote."""
    model = onnx.load(graph, load_external_data=False)
    inputs, outputs = port_names(model.graph.input), port_names(model.graph.output)
    types = {port.name: port.type.tensor_type.elem_type for port in model.graph.input}
    is_fused = K_CACHE in inputs
    has_contrib = any(node.op_type == "GroupQueryAttention" for node in model.graph.node)
    kind = "fused" if is_fused else "ort" if has_contrib else "portable"
    is_int8 = types.get(K_CACHE) == onnx.TensorProto.UINT8
    n_floats = 2 * config.n_layers * config.n_kv_heads * config.head_size
    rows = KVLayout("rows", "float32", 4 * n_floats)
    return GraphContract(
        compiler=kind,
        backend=kind,
        triple=ANY_TRIPLE,
        providers=("CPUExecutionProvider",),
        inputs=inputs,
        outputs=outputs,
        kv=kv_panels(config, "int8" if is_int8 else "float16") if is_fused else rows,
        can=Capabilities(
            trees=is_fused or ATTENTION_BIAS in inputs,
            gates=LAYER_GATES in inputs,
            row_stats=stats_port("argmax") in outputs,
            entry=ENTRY in inputs,
            hidden=tuple(i for i in range(config.n_layers + 1) if hidden_port(i) in outputs),
        ),
    )


def open_graph_model(
    graph: Path, config: ModelConfig, threads: int, affinity: Affinity | None = None
) -> Model:
    """Returns a model over a graph of any kind."""
    contract = contract_of(graph, config)
    make = {"fused": FusedModel, "portable": PortableModel, "ort": OrtModel}[contract.backend]
    return make(GraphToRun(graph, config, contract, threads, affinity or Affinity()))
