"""Gated causal convolutions against float64, on every instruction set and inside ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.models.recurrence import conv_taps, convolved

from ..doors import short_conv_op

SHAPES = [(1, 16, 3, 0), (5, 8, 4, 2), (9, 20, 3, 40), (16, 256, 3, 7), (33, 600, 1, 3)]
"""Rows, channels, taps, committed tokens."""
N_KEPT = 48


def make(rng, rows, channels, size, past):
    bcx = rng.standard_normal((rows, 3 * channels)).astype(np.float32)
    parents = np.array([rng.integers(-1, i) if i else -1 for i in range(rows)], np.int64)
    weight = rng.standard_normal((channels, size)).astype(np.float32)
    bias = rng.standard_normal(channels).astype(np.float32)
    kept = rng.standard_normal((N_KEPT, channels)).astype(np.float32)
    return bcx, parents, weight, kept, past, bias


def run(bcx, parents, weight, kept, past, bias, **options):
    return short_conv_op.short_conv(bcx, parents, weight, kept, past, bias=bias, **options)


def expected(bcx, parents, weight, kept, past, bias):
    """Returns the convolutions in float64."""
    b, c, x = np.split(bcx.astype(np.float64), 3, axis=1)
    before = kept[np.arange(past) % N_KEPT].astype(np.float64)  # the latest ones are right
    weights = {"conv.weight": weight[:, None].astype(np.float64), "conv.bias": bias}
    taps = conv_taps(parents, past, weight.shape[1])
    return c * convolved(np.concatenate([before, b * x]), taps, weights)


@pytest.mark.parametrize("shape", SHAPES)
def test_against_float64(isa, rng, shape, guards):
    bcx, parents, weight, kept, past, bias = make(rng, *shape)
    kept = guards.copy(kept)
    out = guards.copy(np.full((shape[0], shape[1]), np.nan, np.float32))
    want = expected(bcx, parents, weight, kept, past, bias)
    copies = [guards.copy(array) for array in (bcx, parents, weight)]
    found = run(*copies, kept, past, guards.copy(bias), out=out, isa=isa)
    assert found is out
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    b, _, x = np.split(bcx, 3, axis=1)
    np.testing.assert_array_equal(kept[(past + np.arange(shape[0])) % N_KEPT], b * x)


@pytest.mark.parametrize("shape", SHAPES)
def test_same_bits_on_every_isa_and_number_of_threads(simd, rng, shape, same_bits):
    bcx, parents, weight, kept, past, bias = make(rng, *shape)
    found = run(bcx, parents, weight, kept.copy(), past, bias, isa=simd, n_threads=3)
    assert same_bits(found, run(bcx, parents, weight, kept, past, bias, isa="scalar"))


def test_rows_do_not_depend_on_how_passes_cut_them(isa, rng, same_bits):
    bcx, parents, weight, kept, past, bias = make(rng, 12, 40, 3, 30)
    whole = run(bcx, parents, weight, kept.copy(), past, bias, isa=isa)
    for known in range(12):
        rest = run(bcx[known : known + 1], parents[: known + 1], weight, kept, past, bias, isa=isa)
        assert same_bits(rest, whole[known : known + 1])


def test_wrong_shapes_are_refused(rng):
    bcx, parents, weight, kept, past, _ = make(rng, 4, 8, 3, 50)
    with pytest.raises(ValueError, match="kept: got 5 rows, expected 6 for 4 nodes behind 50"):
        short_conv_op.short_conv(bcx, parents, weight, kept[:5], past)
    with pytest.raises(ValueError, match="parents: got"):
        short_conv_op.short_conv(bcx, parents + 9, weight, kept, past)


@pytest.fixture
def node(rng):
    from .op_node import Node

    bcx, parents, weight, kept, past, bias = make(rng, 6, 20, 3, 60)
    feeds = {
        "bcx": bcx[None],
        "parents": parents[None],
        "past": np.array([past], np.int64),
        "kept": np.stack([kept, kept]),
    }
    constants = {"weight": weight[:, None], "bias": bias}
    names = ["bcx", "parents", "past", "kept", "weight", "bias"]
    return Node("ShortConv", names, feeds, constants, {"layer": 1})


def test_inside_onnx_runtime(node, same_bits):
    feeds, (weight, bias) = node.feeds, node.constants.values()
    kept = feeds["kept"][0].copy()
    direct = run(feeds["bcx"][0], feeds["parents"][0], weight[:, 0], kept, 60, bias)
    assert same_bits(node.run(n_threads=2)[0], direct)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (
            "bcx",
            np.zeros((1, 6, 59), np.float32),
            "bcx has shape [1, 6, 59], expected [1, any, 60]",
        ),
        ("parents", np.zeros((1, 5), np.int64), "parents are 5, expected one for each of 6 rows"),
        ("parents", np.zeros((1, 6), np.int64), "parents[0] is 0, expected -1 to -1"),
        ("past", np.array([-1]), "past is -1, expected 0 to"),
        ("kept", np.zeros((2, 7, 20), np.float32), "2 tokens before the pass + 6 nodes do not fit"),
        ("layer", 2, "layer is 2, but kept has 2 layers"),
        ("weight", np.zeros((20, 1, 65), np.float32), "weight has shape [20, 1, 65], expected one"),
        ("bias", np.zeros(19, np.float32), "bias has shape [19], expected [20]"),
    ],
)
def test_a_graph_that_is_wrong_is_refused(node, name, value, text):
    from .op_node import refuses

    for values in (node.feeds, node.constants, node.attributes):
        if name in values:
            values[name] = value
    refuses(node, text)
