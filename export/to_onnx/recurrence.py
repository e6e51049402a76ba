"""Recurrent layers in standard operators: functions that a portable graph carries and calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgedec.export.to_onnx.make import (
    make_function,
    make_graph,
    make_node,
    make_opset,
    make_port,
    tensor_of,
)
from edgedec.export.to_onnx.messages import FunctionProto, GraphProto, NodeProto, TensorProto
from edgedec.models.recurrence import MIN_KEY_SQUARE, Recurrence

DOMAIN = "edgedec.portable"
SHORT_CONV, SHORT_CONV_WITH_BIAS = "ShortConv", "ShortConvWithBias"
VECTORS = ("conv.weight", "conv.bias", "a_log", "dt_bias", "skip")
"""Weights of a recurrence, in the order of inputs, as far as the model has them."""
STATE_SPACE = "StateSpace"


def short_conv(opset: int, has_bias: bool) -> FunctionProto:
    """Returns ``c * conv(b * x)`` as a function.

    Inputs b, c, x [1, T, C], past [1, Q, C], taps [T, K], weight [C, 1, K] and perhaps bias [C];
    outputs y [1, T, C], present [1, Q + T, C].
    """
    nodes = [
        _node("Mul", ["b", "x"], "rows"),
        _node("Concat", ["past", "rows"], "present", axis=1),
        _node("Gather", ["present", "taps"], "read", axis=1),  # [1, T, K, C]
        *_convolution(2, "bias" if has_bias else ""),
        _node("Mul", ["c", "convolved"], "y"),
    ]
    name = SHORT_CONV_WITH_BIAS if has_bias else SHORT_CONV
    inputs = ["b", "c", "x", "past", "taps", "weight", *(["bias"] if has_bias else [])]
    opsets = [make_opset("", opset)]
    return make_function(DOMAIN, name, inputs, ["y", "present"], nodes, opsets)


def state_space(opset: int, recurrence: Recurrence, vectors: Sequence[str]) -> FunctionProto:
    """Returns Mamba-2 or the gated delta rule as a function: two loops, one behind the other.

    The first goes from the state before the pass along the trunk, a chain of tokens, and leaves
    the state that comes out. The second goes on from there, level by level of a tree; a token's
    state is computed from that of its parent, in the level before.

    Inputs x [1, T, C], the gates [1, T, H] of Mamba-2 or two of the delta rule, past [1, Q, W],
    taps [S, K], state [H, N, P], trunk [B], levels [2, D, V], order [T], then the weights
    ``vectors``, of `VECTORS`; outputs y [1, T, H * P], present [1, Q + T, W], and the state.
    For the integers see `StateWalk`.
    """
    n_gates = recurrence.n_gates // recurrence.n_heads
    gates = [f"gates.{i}" for i in range(n_gates)]
    names = {"conv.weight": "weight", "conv.bias": "bias"}
    weights = [names.get(name, name) for name in vectors]
    has_skip = "skip" in weights
    nodes = [
        _node("Concat", ["x", *gates], "rows", axis=-1),
        _node("Concat", ["past", "rows"], "present", axis=1),
        *_channels(recurrence, "bias" if "bias" in weights else ""),
        *_heads(recurrence),
        *_gates(recurrence),
        *_walk(recurrence),
        *_outputs(recurrence, has_skip),
    ]
    inputs = ["x", *gates, "past", "taps", "state", "trunk", "levels", "order", *weights]
    outputs = ["y", "present", "left"]
    return make_function(DOMAIN, STATE_SPACE, inputs, outputs, nodes, [make_opset("", opset)])


def _convolution(axis: int, bias: str) -> list[NodeProto]:
    """Returns the nodes that make ``convolved`` of ``read``, whose ``axis`` is that of the taps."""
    summed = "summed" if bias else "convolved"
    nodes = [
        _node("Transpose", ["weight"], "kernel", perm=[1, 2, 0]),
        _node("Mul", ["read", "kernel"], "weighed"),
        _integers("axis", [axis]),
        _node("ReduceSum", ["weighed", "axis"], summed, keepdims=0),
    ]
    return [*nodes, _node("Add", [summed, bias], "convolved")] if bias else nodes


def _channels(recurrence: Recurrence, bias: str) -> list[NodeProto]:
    """Makes ``queries``, ``keys`` and ``values`` [S, ...], and ``gates`` [S, n_gates]."""
    parts = ["values.all", "keys.all", "queries.all"]
    sizes = [recurrence.value_size, recurrence.key_size, recurrence.key_size]
    if recurrence.kind == "delta":
        parts, sizes = parts[::-1], sizes[::-1]
    return [
        _integers("one.first", [0]),
        _node("Squeeze", ["present", "one.first"], "steps"),
        _integers("row.parts", [recurrence.conv_channels, recurrence.n_gates]),
        _split("steps", ["channels", "gates.kept"], "row.parts"),
        _node("Gather", ["channels", "taps"], "read", axis=0),  # [S, K, C]
        *_convolution(1, bias),
        _node("Sigmoid", ["convolved"], "convolved.gate"),
        _node("Mul", ["convolved", "convolved.gate"], "activated"),
        _integers("channel.parts", sizes),
        _split("activated", parts, "channel.parts"),
        _integer("tap.own", recurrence.conv_size - 1),
        _node("Gather", ["taps", "tap.own"], "own", axis=1),
        _node("Gather", ["gates.kept", "own"], "gates", axis=0),
    ]


def _heads(recurrence: Recurrence) -> list[NodeProto]:
    """Makes ``values`` [S, H, 1, P], ``query``, ``key.row`` [S, H, 1, N], ``key`` [S, H, N, 1]."""
    each = recurrence.n_heads // recurrence.n_groups
    heads = np.arange(recurrence.n_heads)
    groups = heads % recurrence.n_groups if recurrence.is_tiled else heads // each
    is_delta = recurrence.kind == "delta"
    nodes = [
        _integers("values.shape", [0, recurrence.n_heads, 1, recurrence.head_size]),
        _node("Reshape", ["values.all", "values.shape"], "values"),
        _integers("keys.shape", [0, recurrence.n_groups, 1, recurrence.state_size]),
        _integers("groups", groups.tolist()),
        _integers("axis.last", [-1]),
    ]
    for part, name in (("keys", "key.row"), ("queries", "query")):
        nodes.append(_node("Reshape", [f"{part}.all", "keys.shape"], f"{part}.apart"))
        if is_delta:
            nodes += _unit_length(f"{part}.apart")
            if part == "queries":
                nodes.append(_float("queries.scale", recurrence.state_size**-0.5))
                nodes.append(_node("Mul", [f"{part}.apart.unit", "queries.scale"], "scaled"))
        made = {"keys": "keys.apart.unit", "queries": "scaled"} if is_delta else {}
        nodes.append(_node("Gather", [made.get(part, f"{part}.apart"), "groups"], name, axis=1))
    return [*nodes, _node("Transpose", ["key.row"], "key", perm=[0, 1, 3, 2])]


def _unit_length(x: str) -> list[NodeProto]:
    return [
        _node("Mul", [x, x], f"{x}.squares"),
        _node("ReduceSum", [f"{x}.squares", "axis.last"], f"{x}.square", keepdims=1),
        _float(f"{x}.least", MIN_KEY_SQUARE),
        _node("Add", [f"{x}.square", f"{x}.least"], f"{x}.bounded"),
        _node("Sqrt", [f"{x}.bounded"], f"{x}.length"),
        _node("Div", [x, f"{x}.length"], f"{x}.unit"),
    ]


def _gates(recurrence: Recurrence) -> list[NodeProto]:
    """Makes ``decay`` and ``strength`` [S, H, 1, 1]."""
    step = "raw.step" if recurrence.kind == "delta" else "gates"
    nodes = [
        _node("Add", [step, "dt_bias"], "biased"),
        _node("Softplus", ["biased"], "step"),
        _node("Exp", ["a_log"], "rate"),
        _node("Mul", ["rate", "step"], "fading"),
        _node("Neg", ["fading"], "fading.log"),
        _node("Exp", ["fading.log"], "decay.flat"),
        _integers("gates.shape", [0, recurrence.n_heads, 1, 1]),
        _node("Reshape", ["decay.flat", "gates.shape"], "decay"),
    ]
    if recurrence.kind != "delta":
        return [*nodes, _node("Reshape", ["step", "gates.shape"], "strength")]
    return [
        _split("gates", ["raw.strength", step]),
        *nodes,
        _node("Sigmoid", ["raw.strength"], "strength.flat"),
        _node("Reshape", ["strength.flat", "gates.shape"], "strength"),
    ]


def _walk(recurrence: Recurrence) -> list[NodeProto]:
    """Makes ``left``, the state behind the trunk, and ``y.steps`` of trunk and levels."""
    return [
        _node("Constant", [], "always", value=tensor_of(np.array(True))),
        _node("Shape", ["trunk"], "trunk.length", start=0, end=1),
        _loop("trunk.length", "state", ["left", "y.trunk"], _step(recurrence, is_tree=False)),
        _split("levels", ["level.s", "level.p"], axis=0),
        _node("Squeeze", ["level.s", "one.first"], "level.steps"),
        _node("Squeeze", ["level.p", "one.first"], "level.parents"),
        _node("Shape", ["levels"], "depth", start=1, end=2),
        _node("Shape", ["levels"], "width", start=2, end=3),
        _integers("state.sizes", [1, 1, 1]),
        _node("Concat", ["width", "state.sizes"], "states.shape", axis=0),
        _node("Expand", ["left", "states.shape"], "states"),
        _loop("depth", "states", ["states.last", "y.levels"], _step(recurrence, is_tree=True)),
        _integers("y.shape", [-1, recurrence.value_size]),
        _node("Reshape", ["y.trunk", "y.shape"], "y.chain"),
        _node("Reshape", ["y.levels", "y.shape"], "y.tree"),
        _node("Concat", ["y.chain", "y.tree"], "y.steps", axis=0),
    ]


def _step(recurrence: Recurrence, is_tree: bool) -> GraphProto:
    """Returns a step of a loop, that of one token or of all tokens of a level.

    Of a head's state S, S'' = decay S; S' = S'' + k (strength (v - recalled))^T, where the delta
    rule has recalled = k S'', Mamba-2 0; y = q S'.
    """
    is_delta = recurrence.kind == "delta"
    read = ["key", "query", "values", "decay", "strength", *(["key.row"] if is_delta else [])]
    nodes, state, value = [], "before", "values.here"
    if is_tree:
        nodes.append(_node("Gather", ["level.parents", "i"], "parents", axis=0))
        nodes.append(_node("Gather", ["before", "parents"], state := "of.parents", axis=0))
    nodes.append(_node("Gather", ["level.steps" if is_tree else "trunk", "i"], "here", axis=0))
    nodes += [_node("Gather", [name, "here"], f"{name}.here", axis=0) for name in read]
    nodes.append(_node("Mul", [state, "decay.here"], "faded"))
    if is_delta:
        nodes.append(_node("MatMul", ["key.row.here", "faded"], "recalled"))
        nodes.append(_node("Sub", [value, "recalled"], value := "news"))
    nodes += [
        _node("Mul", [value, "strength.here"], "change"),
        _node("Mul", ["key.here", "change"], "written"),
        _node("Add", ["faded", "written"], "after"),
        _node("MatMul", ["query.here", "after"], "y.here"),
        _node("Identity", ["goes.on"], "goes.further"),
    ]
    level = ("V",) if is_tree else ()
    sizes = *level, *recurrence.state_sizes
    inputs = [
        make_port("i", TensorProto.INT64, ()),
        make_port("goes.on", TensorProto.BOOL, ()),
        make_port("before", TensorProto.FLOAT, sizes),
    ]
    outputs = [
        make_port("goes.further", TensorProto.BOOL, ()),
        make_port("after", TensorProto.FLOAT, sizes),
        make_port(
            "y.here", TensorProto.FLOAT, (*level, recurrence.n_heads, 1, recurrence.head_size)
        ),
    ]
    return make_graph(nodes, "level" if is_tree else "token", inputs, outputs)


def _outputs(recurrence: Recurrence, has_skip: bool) -> list[NodeProto]:
    """Makes ``y`` [1, T, H * P]."""
    nodes = [_node("Gather", ["y.steps", "order"], summed := "y.rows", axis=0)]
    if has_skip:
        nodes += [
            _node("Shape", ["x"], "n", start=1, end=2),
            _node("Neg", ["n"], "n.last"),
            _integers("end", [2**31]),
            _node("Slice", ["values", "n.last", "end", "one.first"], "values.own"),
            _integers("skip.shape", [recurrence.n_heads, 1, 1]),
            _node("Reshape", ["skip", "skip.shape"], "skip.heads"),
            _node("Mul", ["values.own", "skip.heads"], "skipped.heads"),
            _node("Reshape", ["skipped.heads", "y.shape"], "skipped"),
            _node("Add", ["y.rows", "skipped"], summed := "y.skipped"),
        ]
    return [*nodes, _node("Unsqueeze", [summed, "one.first"], "y")]


def _loop(n_steps: str, state: str, outputs: list[str], body: GraphProto) -> NodeProto:
    """Returns a loop, of no step, too, that carries one state and collects an output."""
    return make_node("Loop", [n_steps, "always", state], outputs, outputs[0], body=body)


def _split(x: str, outputs: list[str], sizes: str = "", axis: int = -1) -> NodeProto:
    """Returns a split into parts of ``sizes``, or into equal ones."""
    n = None if sizes else len(outputs)
    inputs = [x, sizes] if sizes else [x]
    return make_node("Split", inputs, outputs, f"{x}.split", axis=axis, num_outputs=n)


def _node(op_type: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
    return make_node(op_type, inputs, [output], output, **attributes)


def _integers(name: str, values: list[int]) -> NodeProto:
    return _node("Constant", [], name, value=tensor_of(np.array(values, np.int64)))


def _integer(name: str, value: int) -> NodeProto:
    return _node("Constant", [], name, value=tensor_of(np.array(value, np.int64)))


def _float(name: str, value: float) -> NodeProto:
    return _node("Constant", [], name, value=tensor_of(np.array(value, np.float32)))
