"""One operator inside ONNX Runtime."""

from __future__ import annotations

import re

import pytest

from edgedec.kernels import library

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

TYPES = {"float32": 1, "uint8": 2, "int64": 7, "float16": 10}
OUTPUTS = {
    "RowStats": {"argmax": 7, "log_sum_exp": 1, "entropy": 1, "top_ids": 7, "top_logits": 1},
}  # others have one, a float
ERRORS = (
    ort.capi.onnxruntime_pybind11_state.InvalidGraph,
    ort.capi.onnxruntime_pybind11_state.InvalidArgument,
    ort.capi.onnxruntime_pybind11_state.Fail,
    ort.capi.onnxruntime_pybind11_state.RuntimeException,
)


def open_node(op, names, feeds, constants, attributes, n_threads=1):
    """Returns a session of one node. ``names`` are its inputs in order, "" for an absent one."""
    inputs = [
        onnx.helper.make_tensor_value_info(name, TYPES[str(value.dtype)], [None] * value.ndim)
        for name, value in feeds.items()
    ]
    outputs = [
        onnx.helper.make_tensor_value_info(name, element, None)
        for name, element in OUTPUTS.get(op, {"y": TYPES["float32"]}).items()
    ]
    made = [output.name for output in outputs]
    node = onnx.helper.make_node(op, names, made, domain="edgedec", **attributes)
    stored = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = onnx.helper.make_graph([node], "one", inputs, outputs, stored)
    opsets = [onnx.helper.make_opsetid("", 23), onnx.helper.make_opsetid("edgedec", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=11)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = n_threads
    options.register_custom_ops_library(str(library.library_path()))
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


class Node:
    """A node that works, to be run as it is or with something changed."""

    def __init__(self, op, names, feeds, constants, attributes):
        self.op, self.names = op, list(names)
        self.feeds, self.constants, self.attributes = feeds, constants, attributes

    def run(self, n_threads=1):
        values = (self.names, self.feeds, self.constants, self.attributes)
        attributes = {name: value for name, value in values[3].items() if value is not None}
        return open_node(self.op, *values[:3], attributes, n_threads).run(None, self.feeds)[0]

    def feed_constants(self):
        """Turns the constants into inputs, which are checked call by call."""
        self.feeds.update(self.constants)
        self.constants.clear()


def refuses(node, text):
    with pytest.raises(ERRORS, match=re.escape(f"edgedec.{node.op}: {text}")):
        node.run()
