"""The operators inside ONNX Runtime: the kernels' own bits, and errors instead of crashes."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.kernels import embed_op
from edgedec.models.quant import FORMATS

from ..doors import linear_op
from .op_node import ERRORS, Node, open_node, refuses

N, K = 40, 256


@pytest.fixture
def embed_node(make_matrix):
    table = make_matrix(FORMATS["q6_k"], N, K)
    ids = np.array([[0, N - 1, 7]], np.int64)
    attributes = {"format": table.format, "n": N, "k": K}
    node = Node("Embed", ["ids", "table"], {"ids": ids}, {"table": table.data}, attributes)
    node.expected = embed_op.embed(ids[0], table)[None]
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
    node.expected = linear_op.linear(
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
    node.expected = linear_op.linear(x[0], matrices, gate=True)[None]
    return node


@pytest.fixture(params=["embed", "linear", "gate"])
def node(request):
    return request.getfixturevalue(f"{request.param}_node")


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("are_constant", [True, False], ids=["constants", "inputs"])
def test_equals_the_kernel(node, n_threads, are_constant, same_bits):
    if not are_constant:
        node.feed_constants()
    assert same_bits(node.run(n_threads), node.expected)


def test_no_rows(node):
    for name in ("ids", "x", "residual"):
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


@pytest.mark.parametrize(
    ("attribute", "value", "text"),
    [
        ("format", 14, "format is 14, expected 0 to 13"),
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
        ({"formats": [9, 7, 99]}, "format is 99, expected 0 to 13"),
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


def test_wrong_type_is_refused(linear_node):
    linear_node.constants["w0"] = linear_node.constants["w0"].astype(np.float32)
    with pytest.raises(ERRORS, match=r"Type 'tensor\(float\)' of input parameter \(w0\)"):
        linear_node.run()


def test_unusable_isa_is_refused(embed_node, monkeypatch):
    monkeypatch.setenv("EDGEDEC_ISA", "sse9")
    refuses(embed_node, "no usable instruction set: EDGEDEC_ISA")
