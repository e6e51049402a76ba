"""Recurrent layers in standard operators: functions that a portable graph carries and calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgedec.export.to_onnx.make import make_function, make_node, make_opset, tensor_of
from edgedec.export.to_onnx.messages import FunctionProto, NodeProto

DOMAIN = "edgedec.portable"
SHORT_CONV, SHORT_CONV_WITH_BIAS = "ShortConv", "ShortConvWithBias"
VECTORS = ("conv.weight", "conv.bias", "a_log", "dt_bias", "skip")
"""Weights of a recurrence, in the order of inputs, as far as the model has them."""
STATE_SPACE = "StateSpace"
"""A call that has no function: no graph of standard operators has it, only one that is fused."""


def short_conv(opset: int, has_bias: bool) -> FunctionProto:
    """Returns ``c * conv(b * x)`` as a function.

    Inputs b, c, x [1, T, C], past [1, Q, C], taps [T, K], weight [C, 1, K] and perhaps bias [C];
    outputs y [1, T, C], present [1, Q + T, C].
    """
    nodes = [
        _node("Mul", ["b", "x"], "rows"),
        _node("Concat", ["past", "rows"], "present", axis=1),
        *_convolution("present", has_bias),
        _node("Mul", ["c", "convolved"], "y"),
    ]
    name = SHORT_CONV_WITH_BIAS if has_bias else SHORT_CONV
    inputs = ["b", "c", "x", "past", "taps", "weight", *(["bias"] if has_bias else [])]
    opsets = [make_opset("", opset)]
    return make_function(DOMAIN, name, inputs, ["y", "present"], nodes, opsets)


def _convolution(rows: str, has_bias: bool) -> list[NodeProto]:
    """Returns the nodes that make ``convolved`` of the channels of ``rows``."""
    summed = "summed" if has_bias else "convolved"
    nodes = [
        _node("Gather", [rows, "taps"], "read", axis=1),  # [1, T, K, C]
        _node("Transpose", ["weight"], "kernel", perm=[1, 2, 0]),
        _node("Mul", ["read", "kernel"], "weighed"),
        _integers("axis", [2]),
        _node("ReduceSum", ["weighed", "axis"], summed, keepdims=0),
    ]
    return [*nodes, _node("Add", [summed, "bias"], "convolved")] if has_bias else nodes


def _node(op_type: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
    return make_node(op_type, inputs, [output], output, **attributes)


def _integers(name: str, values: list[int]) -> NodeProto:
    return _node("Constant", [], name, value=tensor_of(np.array(values, np.int64)))
