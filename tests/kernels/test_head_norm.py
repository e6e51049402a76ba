"""Norms of heads against float64, on every instruction set and inside ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from ..doors import head_norm_op

EPSILON = 1e-6
SHAPES = [(1, 2, 1, 8), (3, 4, 2, 64), (5, 1, 1, 20), (16, 3, 3, 6), (33, 16, 8, 128)]
"""Rows, heads of queries, heads of keys, channels of a head."""


def make(rng, rows, n_heads, n_kv_heads, d):
    qkv = rng.standard_normal((rows, (n_heads + 2 * n_kv_heads) * d)).astype(np.float32)
    qkv *= np.exp(rng.uniform(-6, 6, (rows, 1))).astype(np.float32)
    weights = tuple(rng.uniform(-2, 2, d).astype(np.float32) for _ in range(2))
    return qkv, weights


def expected(qkv, weights, n_kv_heads):
    """Returns the norms in float64."""
    d = len(weights[0])
    heads = qkv.reshape(len(qkv), -1, d).astype(np.float64)
    normed = heads / np.sqrt((heads**2).mean(axis=2, keepdims=True) + EPSILON)
    n_heads = heads.shape[1] - 2 * n_kv_heads
    q, k = normed[:, :n_heads] * weights[0], normed[:, n_heads:-n_kv_heads] * weights[1]
    return np.concatenate([q, k, heads[:, -n_kv_heads:]], axis=1).reshape(qkv.shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_against_float64(isa, rng, shape, guards):
    qkv, weights = make(rng, *shape)
    out = guards.copy(np.full_like(qkv, np.nan))
    found = head_norm_op.head_norm(
        guards.copy(qkv), tuple(map(guards.copy, weights)), shape[2], EPSILON, out=out, isa=isa
    )
    assert found is out
    # A sum of d squares in float32, a root, a division and two products.
    bound = (shape[3] / 16 + 8) * np.finfo(np.float32).eps
    np.testing.assert_allclose(found, expected(qkv, weights, shape[2]), rtol=bound)
    values = -shape[2] * shape[3]
    np.testing.assert_array_equal(found[:, values:], qkv[:, values:])


@pytest.mark.parametrize("shape", SHAPES)
def test_values_without_weights(isa, rng, shape):
    qkv, weights = make(rng, *shape)
    found = head_norm_op.head_norm(qkv, weights, shape[2], EPSILON, norms_values=True, isa=isa)
    plain = head_norm_op.head_norm(qkv, weights, shape[2], EPSILON, isa=isa)
    values = -shape[2] * shape[3]
    np.testing.assert_array_equal(found[:, :values], plain[:, :values])
    ones = (np.ones(shape[3], np.float32),) * 2
    whole = head_norm_op.head_norm(np.ascontiguousarray(qkv[:, values:]), ones, 0, EPSILON, isa=isa)
    np.testing.assert_array_equal(found[:, values:], whole)


@pytest.mark.parametrize("shape", SHAPES)
def test_queries_alone(isa, rng, shape):
    qkv, weights = make(rng, *shape)
    queries = np.ascontiguousarray(qkv[:, : shape[1] * shape[3]])
    found = head_norm_op.head_norm(queries, weights, 0, EPSILON, isa=isa)
    whole = head_norm_op.head_norm(qkv, weights, shape[2], EPSILON, isa=isa)
    np.testing.assert_array_equal(found, whole[:, : shape[1] * shape[3]])


@pytest.mark.parametrize("shape", SHAPES)
def test_same_bits_on_every_isa(simd, rng, shape, same_bits):
    qkv, weights = make(rng, *shape)
    found = head_norm_op.head_norm(qkv, weights, shape[2], EPSILON, isa=simd)
    assert same_bits(found, head_norm_op.head_norm(qkv, weights, shape[2], EPSILON, isa="scalar"))


def test_a_row_alone_or_among_others(isa, rng, same_bits):
    qkv, weights = make(rng, 40, 4, 2, 20)
    whole = head_norm_op.head_norm(qkv, weights, 2, EPSILON, isa=isa, n_threads=3)
    for i in range(len(qkv)):
        alone = head_norm_op.head_norm(qkv[i : i + 1], weights, 2, EPSILON, isa=isa)
        assert same_bits(alone, whole[i : i + 1])


def test_heads_of_zeros_stay_zeros(isa):
    found = head_norm_op.head_norm(
        np.zeros((1, 48), np.float32), (np.ones(16, np.float32),) * 2, 1, EPSILON, isa=isa
    )
    assert not found.any()


@pytest.mark.parametrize(
    ("width", "n_kv_heads", "text"),
    [(48, 2, "has not 2 heads of 16 keys"), (40, 1, "has not 1 heads"), (47, 0, "has not 0 heads")],
)
def test_wrong_shapes_are_refused(width, n_kv_heads, text):
    with pytest.raises(ValueError, match=text):
        head_norm_op.head_norm(
            np.zeros((1, width), np.float32), (np.ones(16, np.float32),) * 2, n_kv_heads, EPSILON
        )


@pytest.fixture
def node(rng):
    from .op_node import Node

    qkv, (q_weight, k_weight) = make(rng, 6, 4, 2, 20)
    constants = {"q_weight": q_weight, "k_weight": k_weight}
    attributes = {"n_heads": 4, "n_kv_heads": 2, "epsilon": EPSILON}
    names = ["qkv", "q_weight", "k_weight"]
    return Node("HeadNorm", names, {"qkv": qkv.reshape(1, 6, -1)}, constants, attributes)


def test_inside_onnx_runtime(node, same_bits):
    weights = tuple(node.constants.values())
    direct = head_norm_op.head_norm(node.feeds["qkv"][0], weights, 2, EPSILON)
    assert same_bits(node.run(n_threads=2)[0], direct)
    node.feeds["qkv"] = node.feeds["qkv"][:, :0]
    assert node.run().shape == (1, 0, 160)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("qkv", np.zeros((1, 2, 80), np.float32), "qkv has shape [1, 2, 80], expected the last"),
        ("k_weight", np.ones(16, np.float32), "k_weight has shape [16], expected [20]"),
        ("n_heads", 0, "attribute n_heads is 0, expected 1 to 65536"),
        ("epsilon", -1.0, "attribute epsilon is -1, expected 0 or more"),
    ],
)
def test_a_graph_that_is_wrong_is_refused(node, name, value, text):
    from .op_node import refuses

    for values in (node.feeds, node.constants, node.attributes):
        if name in values:
            values[name] = value
    refuses(node, text)
