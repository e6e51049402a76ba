"""The operators inside ONNX Runtime: the kernels' own bits, and errors instead of crashes."""

from __future__ import annotations

import re

import numpy as np
import pytest

from edgedec import kernels
from edgedec.models.quant import FORMATS

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

N, K = 40, 256
TYPES = {"float32": 1, "uint8": 2, "int64": 7, "float16": 10}
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
    output = onnx.helper.make_tensor_value_info("y", TYPES["float32"], None)
    node = onnx.helper.make_node(op, names, ["y"], domain="edgedec", **attributes)
    stored = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = onnx.helper.make_graph([node], "one", inputs, [output], stored)
    opsets = [onnx.helper.make_opsetid("", 23), onnx.helper.make_opsetid("edgedec", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=11)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = n_threads
    options.register_custom_ops_library(str(kernels.library_path()))
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


@pytest.fixture
def embed_node(make_matrix):
    table = make_matrix(FORMATS["q6_k"], N, K)
    ids = np.array([[0, N - 1, 7]], np.int64)
    attributes = {"format": table.format, "n": N, "k": K}
    node = Node("Embed", ["ids", "table"], {"ids": ids}, {"table": table.data}, attributes)
    node.expected = kernels.embed(ids[0], table)[None]
    return node


@pytest.fixture
def linear_node(make_matrix, rng):
    """Norm, residual, three matrices of different formats, a bias for the second."""
    bias = rng.standard_normal(17).astype(np.float32)
    matrices = [
        make_matrix(FORMATS["q4_k"], N, K),
        make_matrix(FORMATS["q8_0"], 17, K, bias),
        make_matrix(FORMATS["f16"], 16, K),
    ]
    x = rng.standard_normal((1, 13, K)).astype(np.float32)
    residual = rng.standard_normal((1, 13, N + 33)).astype(np.float32)
    norm = rng.standard_normal(K).astype(np.float32)
    names = ["x", "norm_weight", "residual", "w0", "", "w1", "b1", "w2"]
    stored = {"norm_weight": norm, "b1": bias}
    stored |= {f"w{i}": matrix.data for i, matrix in enumerate(matrices)}
    attributes = {
        "formats": [m.format for m in matrices], "n": [m.n for m in matrices],
        "k": K, "epsilon": 1e-5, "gate": 0,
    }  # fmt: skip
    node = Node("Linear", names, {"x": x, "residual": residual}, stored, attributes)
    node.expected = kernels.linear(
        x[0], matrices, norm_weight=norm, epsilon=1e-5, residual=residual[0]
    )[None]
    return node


@pytest.fixture
def gate_node(make_matrix, rng):
    matrices = [make_matrix(FORMATS[name], N, K) for name in ("q4_1", "q5_k")]
    x = rng.standard_normal((1, 9, K)).astype(np.float32)
    attributes = {
        "formats": [m.format for m in matrices], "n": [N, N],
        "k": K, "epsilon": 0.0, "gate": 1,
    }  # fmt: skip
    stored = {"w0": matrices[0].data, "w1": matrices[1].data}
    node = Node("Linear", ["x", "", "", "w0", "", "w1"], {"x": x}, stored, attributes)
    node.expected = kernels.linear(x[0], matrices, gate=True)[None]
    return node


LAYER, ROWS, PAST, CAPACITY = 1, 5, 20, 48


@pytest.fixture
def attention_node(rng):
    """Layer 1 of 3, 4 heads over 2 KV heads of size 16; a small tree after a prefix."""

    def halves(*shape):
        return rng.standard_normal(shape).astype(np.float16)

    feeds = {
        "qkv": rng.standard_normal((1, ROWS, 8 * 16)).astype(np.float32),
        "position_ids": np.array([[20, 21, 21, 22, 20]], np.int64),
        "parents": np.array([[-1, 0, 0, 2, -1]], np.int64),
        "past_length": np.array([PAST], np.int64),
        "k_cache": halves(3, 2, CAPACITY // 16, 16, 16),
        "v_cache": halves(3, 2, CAPACITY, 16),
    }
    angles = np.outer(np.arange(64), 0.7 ** np.arange(8)).astype(np.float32)
    stored = {"cos": np.cos(angles), "sin": np.sin(angles)}
    names = ["qkv", "position_ids", "parents", "past_length", "cos", "sin", "k_cache", "v_cache"]
    attributes = {"layer": LAYER, "n_heads": 4, "n_kv_heads": 2, "head_size": 16}
    node = Node("Attention", names, feeds, stored, attributes)
    node.kv_after = (feeds["k_cache"].copy(), feeds["v_cache"].copy())
    node.expected = kernels.attention(
        feeds["qkv"][0], feeds["position_ids"][0], feeds["parents"][0], PAST,
        (stored["cos"], stored["sin"]), (node.kv_after[0][LAYER], node.kv_after[1][LAYER]),
    )[None]  # fmt: skip
    return node


@pytest.fixture(params=["embed", "linear", "gate", "attention"])
def node(request):
    return request.getfixturevalue(f"{request.param}_node")


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("are_constant", [True, False], ids=["constants", "inputs"])
def test_equals_the_kernel(node, n_threads, are_constant, same_bits):
    if not are_constant:
        node.feed_constants()
    assert same_bits(node.run(n_threads), node.expected)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_kv_cache_is_written_in_place(attention_node, n_threads):
    feeds, after = attention_node.feeds, attention_node.kv_after
    assert not np.array_equal(feeds["v_cache"], after[1])
    attention_node.run(n_threads)
    assert np.array_equal(feeds["k_cache"], after[0])
    assert np.array_equal(feeds["v_cache"], after[1])


def test_growing_tree(attention_node, same_bits):
    """The first two nodes in one run, the others in the next: as many parents, fewer rows."""
    feeds, parents = attention_node.feeds, attention_node.feeds["parents"]
    whole = {name: feeds[name] for name in ("qkv", "position_ids")}
    parts = []
    for start, stop in ((0, 2), (2, ROWS)):
        feeds |= {name: value[:, start:stop].copy() for name, value in whole.items()}
        feeds["parents"] = parents[:, :stop].copy()
        parts.append(attention_node.run())
    assert same_bits(np.concatenate(parts, axis=1), attention_node.expected)
    feeds["parents"] = np.full((1, 29), -1)
    refuses(attention_node, "past_length 20 + 29 rows do not fit the KV cache of 48 rows")


def test_no_rows(node):
    for name in ("ids", "x", "qkv", "residual", "position_ids", "parents"):
        if name in node.feeds:
            node.feeds[name] = node.feeds[name][:, :0].copy()
    assert node.run().shape[:2] == (1, 0)


def test_many_runs_of_one_session(linear_node, same_bits):
    values = (linear_node.names, linear_node.feeds, linear_node.constants)
    session = open_node("Linear", *values, linear_node.attributes, n_threads=2)
    for rows in (13, 1, 5, 13):
        feeds = {name: value[:, :rows].copy() for name, value in linear_node.feeds.items()}
        y = session.run(None, feeds)[0]
        assert same_bits(y, linear_node.expected[:, :rows].copy())


def refuses(node, text):
    with pytest.raises(ERRORS, match=re.escape(f"edgedec.{node.op}: {text}")):
        node.run()


@pytest.mark.parametrize(
    ("attribute", "value", "text"),
    [
        ("format", 12, "format is 12, expected 0 to 11"),
        ("format", -1, "attribute format is -1, expected 0 to"),
        ("format", None, "attribute format is missing or not an integer"),
        ("format", 1.5, "attribute format is missing or not an integer"),
        ("n", 0, "attribute n is 0, expected 1 to 2147483648"),
        ("k", 2**24 + 1, "attribute k is 16777217, expected 1 to 16777216"),
        ("k", 255, "k is 255, format 11 expects a multiple of 256"),
    ],
)
def test_embed_attributes(embed_node, attribute, value, text):
    embed_node.attributes[attribute] = value
    refuses(embed_node, text)


@pytest.mark.parametrize("bad", [N, -1, 2**62, -(2**63)])
def test_embed_ids(embed_node, bad):
    embed_node.feeds["ids"][0, 1] = bad
    refuses(embed_node, f"ids[1] is {bad}, expected 0 to {N - 1}")


@pytest.mark.parametrize("are_constant", [True, False], ids=["constants", "inputs"])
def test_embed_table_size(embed_node, are_constant):
    size = embed_node.constants["table"].size
    embed_node.constants["table"] = embed_node.constants["table"][:-1].copy()
    if not are_constant:
        embed_node.feed_constants()
    refuses(embed_node, f"table has shape [{size - 1}], expected [{size}]")


def test_embed_table_at_an_odd_address(embed_node):
    embed_node.feed_constants()
    raw = np.concatenate([np.zeros(1, np.uint8), embed_node.feeds["table"]])
    embed_node.feeds["table"] = raw[1:]
    refuses(embed_node, "table lies at an odd address, expected a multiple of 4")


def test_embed_rank(embed_node):
    embed_node.feeds["ids"] = np.zeros((1,) * 8, np.int64)
    refuses(embed_node, "ids has rank 8, expected at most 7")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"formats": [9, 7]}, "attributes formats and n have 2 and 3 entries, expected one per"),
        ({"formats": [9] * 4, "n": [16] * 4}, "attributes formats and n have 4 and 4 entries"),
        ({"formats": None}, "attribute formats is missing or not a list of integers"),
        ({"formats": [9, 7, 99]}, "format is 99, expected 0 to 11"),
        ({"n": [N, 17, -3]}, "n is -3, expected 1 to 2^31"),
        ({"n": [N, 17, 2**40]}, "n is 1099511627776, expected 1 to 2^31"),
        ({"n": [N, 17, 17]}, "w2 has shape [8192], expected [16384]"),
        ({"n": [N, 18, 16]}, "b1 has shape [17], expected [18]"),
        ({"k": 0}, "attribute k is 0, expected 1 to 16777216"),
        ({"k": 512}, "norm_weight has shape [256], expected [512]"),
        ({"k": None}, "attribute k is missing"),
        ({"epsilon": None}, "attribute epsilon is missing or not a float"),
        ({"epsilon": -1.0}, "attribute epsilon is -1, expected 0 or more"),
        ({"epsilon": float("nan")}, "attribute epsilon is nan"),
        ({"gate": None}, "attribute gate is missing"),
        ({"gate": 2}, "attribute gate is 2, expected 0 to 1"),
        ({"gate": 1}, "gate expects two matrices with equal n"),
        ({"formats": [9, 7], "n": [N, 17]}, "input w2 has no entry in attributes formats and n"),
    ],
)
@pytest.mark.parametrize("are_constant", [True, False], ids=["constants", "inputs"])
def test_linear_attributes(linear_node, changes, text, are_constant):
    linear_node.attributes.update(changes)
    if not are_constant:
        linear_node.feed_constants()
    refuses(linear_node, text)


def test_linear_missing_weight(linear_node):
    linear_node.names = linear_node.names[:5]
    del linear_node.constants["w1"], linear_node.constants["w2"], linear_node.constants["b1"]
    refuses(linear_node, "input w1 is missing")


@pytest.mark.parametrize(
    ("feed", "shape", "text"),
    [
        ("x", (1, 13, 255), "x has shape [1, 13, 255], expected the last size to be 256"),
        ("x", (), "x has shape []"),
        ("x", (1, 12, 256), "residual has shape [1, 13, 73], expected that of the output"),
        ("residual", (13, 73), "residual has shape [13, 73]"),
        ("residual", (1, 13, 72), "residual has shape [1, 13, 72]"),
        ("w0", (1, 1), "w0 has shape [1, 1], expected ["),
        ("w1", (0,), "w1 has shape [0], expected ["),
        ("b1", (16,), "b1 has shape [16], expected [17]"),
        ("norm_weight", (1, 256), "norm_weight has shape [1, 256], expected [256]"),
    ],
)
@pytest.mark.parametrize("are_constant", [True, False], ids=["constants", "inputs"])
def test_linear_shapes(linear_node, feed, shape, text, are_constant):
    source = linear_node.feeds if feed in linear_node.feeds else linear_node.constants
    source[feed] = np.zeros(shape, source[feed].dtype)
    if not are_constant:
        linear_node.feed_constants()
    refuses(linear_node, text)


def test_gate_refuses_bias_and_residual(gate_node):
    bias = np.zeros(N, np.float32)
    gate_node.names, gate_node.feeds["b1"] = ["x", "", "", "w0", "", "w1", "b1"], bias
    refuses(gate_node, "gate expects no bias, got b1")
    del gate_node.feeds["b1"]
    residual = np.zeros((1, 9, N), np.float32)
    gate_node.names, gate_node.feeds["r"] = ["x", "", "r", "w0", "", "w1"], residual
    refuses(gate_node, "gate expects no residual")


@pytest.mark.parametrize(
    ("attribute", "value", "text"),
    [
        ("layer", 3, "layer is 3, but the KV cache has 3 layers"),
        ("layer", -1, "attribute layer is -1"),
        ("layer", None, "attribute layer is missing"),
        ("n_heads", 3, "n_heads 3 is not a multiple of n_kv_heads 2"),
        ("n_heads", 6, "qkv has shape [1, 5, 128], expected [1, any, 160]"),
        ("n_kv_heads", 0, "attribute n_kv_heads is 0"),
        ("n_kv_heads", 4, "qkv has shape"),
        ("head_size", 15, "head_size 15 is odd, expected even"),
        ("head_size", 2**40, "attribute head_size is"),
    ],
)
def test_attention_attributes(attention_node, attribute, value, text):
    attention_node.attributes[attribute] = value
    refuses(attention_node, text)


@pytest.mark.parametrize(
    ("feed", "index", "value", "text"),
    [
        ("position_ids", (0, 3), 64, "position_ids[3] is 64, expected 0 to 63"),
        ("position_ids", (0, 0), -1, "position_ids[0] is -1, expected 0 to 63"),
        ("parents", (0, 2), 2, "parents[2] is 2, expected -1 to 1"),
        ("parents", (0, 0), 0, "parents[0] is 0, expected -1 to -1"),
        ("parents", (0, 4), -2, "parents[4] is -2, expected -1 to 3"),
        ("past_length", 0, CAPACITY - ROWS + 1, "past_length 44 + 5 rows do not fit the KV cache"),
        ("past_length", 0, -1, "past_length -1 + 5 rows do not fit the KV cache of 48 rows"),
        ("past_length", 0, 2**63 - 1, "past_length 9223372036854775807 + 5 rows do not fit"),
    ],
)
def test_attention_ranges(attention_node, feed, index, value, text):
    attention_node.feeds[feed][index] = value
    before = attention_node.feeds["v_cache"].copy()
    refuses(attention_node, text)
    assert np.array_equal(attention_node.feeds["v_cache"], before)


@pytest.mark.parametrize(
    ("feed", "shape", "text"),
    [
        ("qkv", (5, 128), "qkv has shape [5, 128], expected [1, any, 128]"),
        ("qkv", (2, 5, 128), "qkv has shape [2, 5, 128]"),
        ("position_ids", (1, 4), "position_ids has shape [1, 4], expected [1, 5]"),
        ("parents", (5,), "parents has shape [5], expected [1, any]"),
        ("parents", (1, 4), "parents has shape [1, 4], expected [1, 5] or longer"),
        ("past_length", (), "past_length has shape [], expected [1]"),
        ("past_length", (0,), "past_length has shape [0], expected [1]"),
        ("cos", (64, 16), "cos has shape [64, 16], expected [any, 8]"),
        ("sin", (63, 8), "sin has shape [63, 8], expected [64, 8]"),
        ("k_cache", (3, 2, 48, 16), "k_cache has shape [3, 2, 48, 16], expected [3, 2, 3, 16, 16]"),
        ("k_cache", (3, 2, 2, 16, 16), "k_cache has shape [3, 2, 2, 16, 16], expected"),
        ("v_cache", (3, 2, 47, 16), "the KV cache has 47 rows, expected a multiple of 16"),
        ("v_cache", (3, 1, 48, 16), "v_cache has shape [3, 1, 48, 16], expected [any, 2, any, 16]"),
        ("v_cache", (0, 2, 48, 16), "layer is 1, but the KV cache has 0 layers"),
    ],
)
def test_attention_shapes(attention_node, feed, shape, text):
    source = attention_node.feeds if feed in attention_node.feeds else attention_node.constants
    source[feed] = np.zeros(shape, source[feed].dtype)
    refuses(attention_node, text)


@pytest.mark.parametrize("name", ["k_cache", "v_cache"])
def test_attention_refuses_a_constant_cache(attention_node, name):
    attention_node.constants[name] = attention_node.feeds.pop(name)
    refuses(attention_node, f"{name} is a constant, expected an input: it is written in place")


def test_wrong_type_is_refused(linear_node):
    linear_node.constants["w0"] = linear_node.constants["w0"].astype(np.float32)
    with pytest.raises(ERRORS, match=r"Type 'tensor\(float\)' of input parameter \(w0\)"):
        linear_node.run()


def test_unusable_isa_is_refused(embed_node, monkeypatch):
    monkeypatch.setenv("EDGEDEC_ISA", "sse9")
    refuses(embed_node, "no usable instruction set: EDGEDEC_ISA")
