"""Operators that a pass leaves out: what they write, and which gates they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.kernels import library
from edgedec.models.quant import FORMATS

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

N, K, ROWS = 24, 32, 3
TYPES = {"float32": 1, "uint8": 2, "int64": 7, "float16": 10}
OPEN, SHUT = np.array([0, 1, 0], np.int64), np.array([1, 0, 1], np.int64)


def run(op, feeds, attributes):
    """Returns the output of one node. ``feeds``: its inputs in order, None for absent ones."""
    present = {name: value for name, value in feeds.items() if value is not None}
    names = [name if name in present else "" for name in feeds]
    inputs = [
        onnx.helper.make_tensor_value_info(name, TYPES[str(value.dtype)], value.shape)
        for name, value in present.items()
    ]
    output = onnx.helper.make_tensor_value_info("y", TYPES["float32"], None)
    node = onnx.helper.make_node(op, names, ["y"], domain="edgedec", **attributes)
    graph = onnx.helper.make_graph([node], "one", inputs, [output])
    opsets = [onnx.helper.make_opsetid("", 23), onnx.helper.make_opsetid("edgedec", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=11)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(library.library_path()))
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(None, present)[0]


@pytest.fixture
def linear(make_matrix, rng):
    """Returns a runner of a Linear with or without residual, and its inputs."""
    weight = make_matrix(FORMATS["q8_0"], N, K).data
    x = rng.standard_normal((1, ROWS, K)).astype(np.float32)
    residual = rng.standard_normal((1, ROWS, N)).astype(np.float32)

    def call(gates, with_residual=True, **changes):
        feeds = {"x": x, "norm": None, "residual": residual if with_residual else None}
        feeds |= {"w0": weight, "b0": None, "w1": None, "b1": None, "w2": None, "b2": None}
        attributes = {"formats": [FORMATS["q8_0"].index], "n": [N], "k": K, "gate": 0}
        attributes |= {"epsilon": 0.0, "gate_index": 1, **changes}
        attributes = {name: value for name, value in attributes.items() if value is not None}
        return run("Linear", feeds | {"layer_gates": gates}, attributes)

    call.residual = residual
    return call


@pytest.mark.parametrize("with_residual", [True, False])
def test_open_linear(linear, with_residual, same_bits):
    always = linear(None, with_residual, gate_index=-1)
    assert same_bits(linear(OPEN, with_residual), always)
    assert same_bits(linear(None, with_residual, gate_index=None), always)


def test_shut_linear_passes_its_residual_on(linear, same_bits):
    assert same_bits(linear(SHUT), linear.residual)
    assert not same_bits(linear(OPEN), linear.residual)
    assert linear(SHUT, with_residual=False).shape == (1, ROWS, N)


@pytest.mark.parametrize(
    ("gates", "gate_index", "text"),
    [
        ([1, 2, 1], 1, r"layer_gates\[1\] is 2, expected 0 or 1"),
        ([1, -1, 1], 1, r"layer_gates\[1\] is -1, expected 0 or 1"),
        ([1, 1, 1], 3, r"layer_gates has shape \[3\], expected \[more than 3\]"),
        ([[1, 1, 1]], 1, r"layer_gates has shape \[1, 3\], expected \[more than 1\]"),
        ([1, 1, 1], -2, "attribute gate_index is -2, expected -1 or more"),
        ([1, 1, 1], -1, "layer_gates is given, but attribute gate_index names none"),
        ([1, 1, 1], 1.5, "layer_gates is given, but attribute gate_index names none"),
        (None, 1, r"layer_gates has shape absent, expected \[more than 1\]"),
    ],
)
def test_wrong_gates_are_refused(linear, gates, gate_index, text):
    array = None if gates is None else np.array(gates, np.int64)
    with pytest.raises(Exception, match=text):
        linear(array, gate_index=gate_index)


def test_attention_when_open_and_shut(rng, same_bits):
    heads, kv_heads, d, capacity = 4, 2, 16, 32
    feeds = {
        "qkv": rng.standard_normal((1, ROWS, (heads + 2 * kv_heads) * d)).astype(np.float32),
        "position_ids": np.arange(5, 5 + ROWS)[None],
        "parents": np.arange(-1, ROWS - 1)[None],
        "sequences": np.array([[5, ROWS, ROWS, 0, capacity // 16]]),
        "cos": rng.standard_normal((64, d // 2)).astype(np.float32),
        "sin": rng.standard_normal((64, d // 2)).astype(np.float32),
        "k_cache": rng.standard_normal((1, kv_heads, capacity // 16, d, 16)).astype(np.float16),
        "v_cache": rng.standard_normal((1, kv_heads, capacity, d)).astype(np.float16),
    }
    sizes = {"layer": 0, "n_heads": heads, "n_kv_heads": kv_heads, "head_size": d}

    def call(gates, gate_index):
        """Returns the output, and the KV cache after it."""
        kv = {name: feeds[name].copy() for name in ("k_cache", "v_cache")}
        y = run(
            "Attention", feeds | kv | {"layer_gates": gates}, {**sizes, "gate_index": gate_index}
        )
        return y, kv

    always, written = call(None, -1)
    y, kv = call(OPEN, 1)
    assert same_bits(y, always)
    assert all(np.array_equal(kv[name], written[name]) for name in kv)
    y, kv = call(SHUT, 1)
    assert y.shape == always.shape
    assert all(np.array_equal(kv[name], feeds[name]) for name in kv)
    assert not np.array_equal(written["v_cache"], feeds["v_cache"])
