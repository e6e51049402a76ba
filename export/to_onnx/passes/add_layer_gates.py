"""Every half of a layer can be left out of a pass."""

from __future__ import annotations

import re
from dataclasses import replace

from edgedec.export.kv_panels import kv_place
from edgedec.export.to_onnx.graph import GraphEditor, attributes
from edgedec.export.to_onnx.linear_node import linear_nodes
from edgedec.export.to_onnx.make import make_attribute, make_node, make_port, make_tensor
from edgedec.export.to_onnx.messages import ModelProto, NodeProto, TensorProto
from edgedec.models.config import ModelConfig
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.graph import LAYER_GATES

_RESIDUAL = 2  # input of Linear and of Experts
_GATE_WEIGHT = 4  # input of Experts
_KV_CACHES = slice(6, 8)  # inputs of Attention
_GATES = {"Attention": 8, "Experts": 7}
"""Operator -> which of its inputs the gates are."""
_WEIGHT = re.compile(r"layers\.(\d+)\.(self_attn|mlp)\.")


def add_layer_gates(model: ModelProto, config: ModelConfig) -> None:
    """Lets one input decide which sub-layers run: 2i is the attention of layer i, 2i + 1 its MLP.

    Before:
        Linear(x, -, residual, layers.i.mlp.W...);  Attention(qkv, ..., v_cache, layer=i)
    After:
        Linear(x, -, residual, layers.i.mlp.W..., layer_gates, gate_index=2i + 1)
        Attention(qkv, ..., v_cache, layer_gates, layer=i, gate_index=2i)
        (likewise Experts)
        inputs: ..., layer_gates i64 [2 * n_layers], 1 to run and 0 to be skipped

    Where a norm stands between a projection and the residual stream:

    Before:
        Add(x, RMSNormalization(Linear(...), g))
    After:
        Where(gate, Add(x, RMSNormalization(Linear(...), g)), x)

    Raises:
        UnsupportedModelError: A sub-layer could not be left out, since what it adds to the residual
            stream was not folded into one projection.
    """
    editor = GraphEditor(model)
    for node, linear in linear_nodes(editor):
        if (match := _WEIGHT.match(linear.matrices[0].weight)) is None:
            continue
        gate_index = 2 * int(match[1]) + (match[2] == "mlp")
        gated_linear = replace(linear, gate_index=gate_index).write()
        editor.replace([node], [gated_linear])
        _gate_post_norm(editor, gated_linear, gate_index)
    places = {layer: kv_place(config, layer) for layer in config.kv_layers}
    layers = {(place.layer, place.caches): layer for layer, place in places.items()}
    for node in editor.nodes("Attention"):
        k_cache, v_cache = node.input[_KV_CACHES]
        _gate(editor, node, 2 * layers[attributes(node)["layer"], (k_cache, v_cache)])
    for node in editor.nodes("Experts"):
        if (match := _WEIGHT.match(node.input[_GATE_WEIGHT])) is not None:
            gate_index = 2 * int(match[1]) + 1
            _gate_post_norm(editor, _gate(editor, node, gate_index), gate_index)
    editor.finish()
    _check_skipped_values(model)
    model.graph.input.append(make_port(LAYER_GATES, TensorProto.INT64, (2 * config.n_layers,)))


def _gate(editor: GraphEditor, node: NodeProto, gate_index: int) -> NodeProto:
    """Returns what replaces ``node``, which reads the gates."""
    gated = NodeProto()
    gated.CopyFrom(node)
    port = _GATES[node.op_type]
    gated.input[:] = [*node.input[:port], LAYER_GATES, *node.input[port + 1 :]]
    gated.attribute.append(make_attribute("gate_index", gate_index))
    editor.replace([node], [gated])
    return gated


def _gate_post_norm(editor: GraphEditor, projection: NodeProto, gate_index: int) -> None:
    norm = editor.only_reader(projection.output[0], "RMSNormalization")
    add = norm and editor.only_reader(norm.output[0], "Add")
    if add is None:
        return
    stem, stream, result = f"{add.name}.gate", add.input[0], add.output[0]
    index = make_tensor(f"{stem}.index", TensorProto.INT64, [], [gate_index])
    editor.graph.initializer.append(index)
    summed = NodeProto()
    summed.CopyFrom(add)
    summed.output[0] = f"{add.name}.sum"
    entry = make_node("Gather", [LAYER_GATES, index.name], [f"{stem}.entry"], stem)
    is_open = make_node(
        "Cast", [entry.output[0]], [f"{stem}.is_open"], f"{stem}.cast", to=TensorProto.BOOL
    )
    chosen = make_node(
        "Where", [is_open.output[0], summed.output[0], stream], [result], f"{add.name}.gated"
    )
    editor.replace([add], [summed, entry, is_open, chosen])


def _check_skipped_values(model: ModelProto) -> None:
    """Raises unless whatever a skipped node leaves unwritten is read by skipped nodes only.

    A node with a residual writes that when it is skipped; any other writes nothing at all.
    """
    editor = GraphEditor(model)
    for node in (*editor.nodes("Linear"), *editor.nodes("Experts"), *editor.nodes("Attention")):
        gate = _gate_index(node)
        has_residual = node.op_type != "Attention" and node.input[_RESIDUAL]
        if gate < 0 or has_residual:
            continue
        if (reader := _reader_outside(editor, node.output[0], gate)) is not None:
            raise UnsupportedModelError(
                f"layer gates: {reader} reads what {node.name} leaves unwritten when sub-layer "
                f"{gate} is skipped; the recipe adds something else than a plain projection to "
                "the residual stream, which the fused graph cannot gate: export with --target "
                "portable"
            )


def _reader_outside(editor: GraphEditor, value: str, gate: int) -> str | None:
    """Returns who reads ``value``, itself or derived, while ``gate`` is closed; None if nobody."""
    if editor.is_output(value):
        return f"output {value}"
    for reader in editor.readers(value):
        if reader.op_type == "Where" and reader.input[1] == value:
            continue  # takes the other value: made by _gate_post_norm
        reader_gate = _gate_index(reader)
        if reader_gate == gate:
            continue
        if reader_gate >= 0:
            return reader.name
        for derived in reader.output:
            if (outside := _reader_outside(editor, derived, gate)) is not None:
                return outside
    return None


def _gate_index(node: NodeProto) -> int:
    return int(attributes(node).get("gate_index", -1))
