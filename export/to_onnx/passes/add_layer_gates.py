"""Every half of a layer can be left out of a pass."""

from __future__ import annotations

import re
from dataclasses import replace

import onnx
from onnx import TensorProto, helper

from edgedec.export.to_onnx.graph import GraphEditor, attributes
from edgedec.export.to_onnx.linear_node import linear_nodes
from edgedec.models.config import ModelConfig
from edgedec.models.graph import LAYER_GATES

_WEIGHT = re.compile(r"layers\.(\d+)\.(self_attn|mlp)\.")


def add_layer_gates(model: onnx.ModelProto, config: ModelConfig) -> None:
    """Lets one input decide which sub-layers run: 2i is the attention of layer i, 2i + 1 its MLP.

    Before:
        Linear(x, -, residual, layers.i.mlp.W...);  Attention(qkv, ..., v_cache, layer=i)
    After:
        Linear(x, -, residual, layers.i.mlp.W..., layer_gates, gate_index=2i + 1)
        Attention(qkv, ..., v_cache, layer_gates, layer=i, gate_index=2i)
        inputs: ..., layer_gates i64 [2 * n_layers], 1 to run and 0 to be skipped
    """
    editor = GraphEditor(model)
    for node, linear in linear_nodes(editor):
        if (found := _WEIGHT.match(linear.matrices[0].weight)) is None:
            continue
        gate_index = 2 * int(found[1]) + (found[2] == "mlp")
        editor.replace([node], [replace(linear, gate_index=gate_index).write()])
    for node in editor.nodes("Attention"):
        gated = onnx.NodeProto()
        gated.CopyFrom(node)
        gated.input.append(LAYER_GATES)
        gated.attribute.append(helper.make_attribute("gate_index", 2 * attributes(node)["layer"]))
        editor.replace([node], [gated])
    editor.finish()
    model.graph.input.append(
        helper.make_tensor_value_info(LAYER_GATES, TensorProto.INT64, (2 * config.n_layers,))
    )
