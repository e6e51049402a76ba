"""Models over graphs that no bundle describes: what they can do is read off the graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from edgedec.export.kv_panels import KV_FORMAT, kv_panels
from edgedec.export.to_onnx.graph import port_names
from edgedec.export.to_onnx.key_offsets import set_key_offsets
from edgedec.export.to_onnx.messages import ModelProto
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
from edgedec.models.kv_formats import kv_formats_of, kv_panels_of
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
    is_fused = K_CACHE in inputs
    has_contrib = any(node.op_type == "GroupQueryAttention" for node in model.graph.node)
    kind = "fused" if is_fused else "ort" if has_contrib else "portable"
    n_floats = 2 * config.n_layers * config.n_kv_heads * config.head_size
    rows = KVLayout("rows", "float32", 4 * n_floats)
    return GraphContract(
        compiler=kind,
        backend=kind,
        triple=ANY_TRIPLE,
        providers=("CPUExecutionProvider",),
        inputs=inputs,
        outputs=outputs,
        kv=kv_panels(config, kv_format_of(model)) if is_fused else rows,
        can=Capabilities(
            trees=is_fused or ATTENTION_BIAS in inputs,
            gates=LAYER_GATES in inputs,
            row_stats=stats_port("argmax") in outputs,
            entry=ENTRY in inputs,
            hidden=tuple(i for i in range(config.n_layers + 1) if hidden_port(i) in outputs),
        ),
    )


def kv_format_of(model: onnx.ModelProto) -> str:
    """Returns the format of a fused graph's KV cache."""
    stated = (a.i for node in model.graph.node for a in node.attribute if a.name == KV_FORMAT)
    number = next(stated)
    return next(name for name in kv_formats_of("panels") if kv_panels_of(name).index == number)


def add_random_offsets(model: ModelProto, config: ModelConfig) -> None:
    """Gives the keys of all layers offsets; some pairs of channels of the last head have none."""
    rng = np.random.default_rng(7)
    offsets = rng.standard_normal((config.n_layers, config.n_kv_heads, config.head_size))
    half = config.head_size // 2
    offsets[:, -1, 1:3] = offsets[:, -1, half + 1 : half + 3] = 0
    set_key_offsets(model, config, dict(enumerate(offsets.astype(np.float32))))


def open_graph_model(
    graph: Path, config: ModelConfig, threads: int, affinity: Affinity | None = None
) -> Model:
    """Returns a model over a graph of any kind."""
    contract = contract_of(graph, config)
    make = {"fused": FusedModel, "portable": PortableModel, "ort": OrtModel}[contract.backend]
    return make(GraphToRun(graph, config, contract, threads, affinity or Affinity()))
