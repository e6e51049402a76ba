"""Recurrent layers read and write rows that stay where they are."""

from __future__ import annotations

from edgedec.export.to_onnx.graph import GraphEditor
from edgedec.export.to_onnx.linear_node import DOMAIN
from edgedec.export.to_onnx.make import make_node, make_port
from edgedec.export.to_onnx.messages import ModelProto, NodeProto, TensorProto
from edgedec.export.to_onnx.recurrence import DOMAIN as PORTABLE
from edgedec.export.to_onnx.recurrence import SHORT_CONV, SHORT_CONV_WITH_BIAS, STATE_SPACE, VECTORS
from edgedec.models.blocks import mixer_prefix
from edgedec.models.config import ModelConfig
from edgedec.models.graph import (
    CONV_TAPS,
    PARENTS,
    RECURRENT_PAST,
    RECURRENT_ROWS,
    STATE_LEVELS,
    STATE_ORDER,
    STATE_PLACE,
    STATE_TRUNK,
    STATES,
    new_rows_port,
    new_state_port,
    rows_port,
    state_port,
)

_N_PARTS = 3
_FIRST_VECTOR = 5  # of the function's inputs


def fuse_recurrence(model: ModelProto, config: ModelConfig) -> None:
    """Replaces calls of the recurrence, and its rows in and out of every layer.

    Before:
        b, c, x = Split(bcx)
        ShortConv(b, c, x, past_rows, conv_taps, conv.weight) -> y, present_rows
    After:
        ShortConv(bcx, parents, recurrent_past, recurrent_rows, conv.weight, layer=i) -> y
        All layers share recurrent_rows f32 [L, Q, C], written in place.

    Before:
        StateSpace(x, gates, ..., past_rows, conv_taps, past_state, state_trunk, state_levels,
            state_order, conv.weight, ...) -> y, present_rows, present_state
    After:
        StateSpace(x, Concat(gates, ...), parents, recurrent_past, state_place, recurrent_rows,
            states, conv.weight, ..., layer=i) -> y
        All layers share states f32 [L, 2, F], too, written in place.
    """
    editor = GraphEditor(model)
    layers = {
        f"{mixer_prefix(layer)}.recurrence": i for i, layer in enumerate(config.recurrent_layers)
    }
    for call in (*editor.nodes(SHORT_CONV), *editor.nodes(SHORT_CONV_WITH_BIAS)):
        split = editor.producer(call.input[0], "Split")
        assert split is not None
        assert list(split.output) == list(call.input[:_N_PARTS])
        fused = make_node(
            SHORT_CONV,
            [split.input[0], PARENTS, RECURRENT_PAST, RECURRENT_ROWS, *call.input[_FIRST_VECTOR:]],
            [call.output[0]],
            call.name,
            domain=DOMAIN,
            layer=layers[call.name],
        )
        editor.replace([split, call], [fused])
    for call in editor.nodes(STATE_SPACE):
        _fuse_state_space(editor, call, config, layers[call.name])
    editor.finish()
    _replace_interface(model, config)


def _fuse_state_space(
    editor: GraphEditor, call: NodeProto, config: ModelConfig, layer: int
) -> None:
    recurrence, prefix = config.recurrence, call.name.removesuffix(".recurrence")
    at = list(call.input).index(CONV_TAPS)
    x, *gates = call.input[: at - 1]
    weight_inputs = set(call.input[at + 1 :])
    joined = [] if len(gates) == 1 else [f"{call.name}.gates"]
    nodes = [make_node("Concat", gates, joined, joined[0], axis=-1)] if joined else []
    inputs = [
        x, *(joined or gates), PARENTS, RECURRENT_PAST, STATE_PLACE, RECURRENT_ROWS, STATES,
        *(name if name in weight_inputs else "" for name in (f"{prefix}.{end}" for end in VECTORS)),
    ]  # fmt: skip
    while not inputs[-1]:
        inputs.pop()
    fused = make_node(
        STATE_SPACE,
        inputs,
        [call.output[0]],
        call.name,
        domain=DOMAIN,
        layer=layer,
        delta=int(recurrence.kind == "delta"),
        tiled=int(recurrence.is_tiled),
        n_heads=recurrence.n_heads,
        n_groups=recurrence.n_groups,
        head_size=recurrence.head_size,
        state_size=recurrence.state_size,
    )
    editor.replace([call], [*nodes, fused])


def _replace_interface(model: ModelProto, config: ModelConfig) -> None:
    graph, recurrence, layers = model.graph, config.recurrence, config.recurrent_layers
    of_layers = (rows_port, new_rows_port, state_port, new_state_port)
    replaced = {CONV_TAPS, STATE_TRUNK, STATE_LEVELS, STATE_ORDER}
    replaced |= {port(layer) for port in of_layers for layer in layers}
    inputs = [v for v in graph.input if v.name not in replaced]
    outputs = [v for v in graph.output if v.name not in replaced]
    opsets = [opset for opset in model.opset_import if opset.domain != PORTABLE]
    del graph.input[:], graph.output[:], model.functions[:], model.opset_import[:]
    model.opset_import.extend(opsets)
    rows = (len(layers), "Q", recurrence.row_size)
    inputs += [
        make_port(RECURRENT_PAST, TensorProto.INT64, (1,)),
        make_port(RECURRENT_ROWS, TensorProto.FLOAT, rows),
    ]
    if recurrence.has_states:
        states = (len(layers), 2, recurrence.n_state_floats)
        inputs += [
            make_port(STATE_PLACE, TensorProto.INT64, (4,)),
            make_port(STATES, TensorProto.FLOAT, states),
        ]
    graph.input.extend(inputs)
    graph.output.extend(outputs)
