"""The matrix product against NumPy float64, across ISAs, batch sizes and threads."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from edgedec.models.quant import FORMATS, PlainTensor, ScaleKind

from ..doors import linear_op

EPSILON = 2.0**-24  # half a unit in the last place of 1, the error of one float32 rounding


def quantise_rows(x):
    """Returns the activations [m, groups * 32] float64 that the kernels' int8 codes stand for.

    A group far above the row's mean scale keeps what rounding left over in a second plane.
    """
    m, k = x.shape
    groups = np.zeros((m, -(-k // 32), 32), np.float32)
    groups.reshape(m, -1)[:, :k] = x
    scale = np.abs(groups).max(axis=2, keepdims=True) / np.float32(127)
    steps = groups * np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    codes = np.rint(steps)
    rest = np.rint((steps - codes) * np.float32(254)) * (scale / np.float32(254)).astype(np.float64)
    is_fine = scale > 2 * scale.mean(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    return (codes * scale.astype(np.float64) + rest * is_fine).reshape(m, -1)


def reference(plain, x):
    """Returns the product in float64 and, for each element, a bound of the float32 error.

    The integer part is exact; each of the roundings that remain is relative to the terms it sees.
    """
    k = x.shape[1]
    weights = plain.dequantize().astype(np.float64)
    if plain.format.is_float:
        magnitude = np.abs(x).astype(np.float64) @ np.abs(weights).T
        return x.astype(np.float64) @ weights.T, (k + 2) * EPSILON * magnitude
    seen = quantise_rows(x)[:, :k]
    magnitude = np.abs(seen) @ largest_parts(plain).T
    return seen @ weights.T, (2 * -(-k // 32) + 8) * EPSILON * magnitude


def largest_parts(plain):
    """Returns |scale * code| + |minimum or zero point part|: what cancels in a weight, not does."""
    fmt = plain.format
    codes = np.zeros_like(plain.codes)
    at_zero = dataclasses.replace(plain, codes=codes).dequantize().astype(np.float64)
    return np.abs(plain.dequantize().astype(np.float64) - at_zero) + np.abs(at_zero) * (
        2 if fmt.kind is ScaleKind.TWO else 1
    )


def is_two_level(fmt):
    return fmt.kind in (ScaleKind.TWO, ScaleKind.TWO_MIN)


def activations(rng, m, k):
    """Rows of very different size, so that a scale shared between rows would show."""
    return (rng.standard_normal((m, k)) * 10.0 ** rng.uniform(-3, 3, (m, 1))).astype(np.float32)


@pytest.mark.parametrize("k", [256, 1280, 1, 31, 33, 100, 288])
def test_matches_float64(fmt, isa, k, make_plain, packed, rng):
    if is_two_level(fmt) and k % 256:
        pytest.skip("two-level formats have whole super groups")
    plain = make_plain(fmt, 35, k)
    x = activations(rng, 5, k)
    y = linear_op.linear(x, [packed(plain)], isa=isa)
    expected, bound = reference(plain, x)
    assert (np.abs(y - expected) <= bound).all()


@pytest.mark.parametrize("n", [1, 15, 16, 17, 31, 33, 64])
def test_n_of_any_size(fmt, isa, n, make_plain, packed, rng):
    plain = make_plain(fmt, n, 256)
    x = activations(rng, 3, 256)
    y = linear_op.linear(x, [packed(plain)], isa=isa, n_threads=2)
    expected, bound = reference(plain, x)
    assert (np.abs(y - expected) <= bound).all()


@pytest.mark.parametrize("m", [1, 7, 16, 17])
def test_simd_equals_scalar(fmt, simd, m, make_matrix, rng, same_bits):
    for n, k in [(48, 512), (21, 256)] + ([] if is_two_level(fmt) else [(20, 100), (3, 7)]):
        matrix = make_matrix(fmt, n, k)
        x = activations(rng, m, k)
        scalar = linear_op.linear(x, [matrix], isa="scalar")
        assert same_bits(linear_op.linear(x, [matrix], isa=simd), scalar)


def test_rows_do_not_see_each_other(fmt, isa, make_matrix, rng, same_bits):
    """Batch invariance: any number of rows, any number of threads."""
    matrix = make_matrix(fmt, 40, 512)
    norm = rng.standard_normal(512).astype(np.float32)
    options = {"norm_weight": norm, "epsilon": 1e-5, "isa": isa}
    x = activations(rng, 100, 512)
    single = np.concatenate([linear_op.linear(row[None], [matrix], **options) for row in x])
    for m in (*range(1, 18), 33, 100):
        for n_threads in (1, 2):
            y = linear_op.linear(x[:m], [matrix], n_threads=n_threads, **options)
            assert same_bits(y, single[:m])
    for shift in range(1, 9):
        assert same_bits(linear_op.linear(x[shift:17], [matrix], **options), single[shift:17])


@pytest.mark.parametrize("name", ["q3_nl", "q2_0"])
def test_levels_give_the_bits_of_their_even_format(isa, name, make_plain, packed, rng, same_bits):
    plain = make_plain(FORMATS[name], 40, 544)
    x = activations(rng, 19, 544)
    for m in (1, 2, 8, 19):
        found, expected = (
            linear_op.linear(x[:m], [packed(p)], isa=isa) for p in (plain, plain.even())
        )
        assert same_bits(found, expected)


def test_extremes(fmt, isa, make_plain, packed, rng):
    """Codes all 0 or all largest, activations all at the ends of int8: nothing saturates."""
    k = 512
    plain = make_plain(fmt, 16, k)
    rows = [np.full(k, 3e4), np.full(k, -3e4), np.zeros(k), np.tile([1.0, -1.0], k // 2)]
    x = np.array(rows, np.float32)
    for code in (0, (1 << fmt.bits) - 1):
        if not fmt.is_float:
            plain.codes[...] = code
        y = linear_op.linear(x, [packed(plain)], isa=isa)
        expected, bound = reference(plain, x)
        assert (np.abs(y - expected) <= bound).all()
        assert not y[2].any()


def test_huge_and_tiny_activations(fmt, isa, make_plain, packed, rng, same_bits):
    k = 256
    plain = make_plain(fmt, 16, k)
    matrix = packed(plain)
    x = np.stack([rng.uniform(-1, 1, k) * size for size in (1e35, 1e-30, 1e-37, 1e-39, 1e-44)])
    x = x.astype(np.float32)
    y = linear_op.linear(x, [matrix], isa=isa)
    assert np.isfinite(y).all()
    assert same_bits(y, linear_op.linear(x, [matrix], isa="scalar"))
    expected, bound = reference(plain, x[:2])
    assert (np.abs(y[:2] - expected) <= bound).all()
    assert (np.abs(y[2:]) < 1e-34).all()


def test_outlier_groups(fmt, isa, make_plain, packed, rng, same_bits):
    """Groups far above the others are kept 254 times finer, in each row by itself."""
    k = 1024
    plain = make_plain(fmt, 40, k)
    x = activations(rng, 19, k)
    for row, group in enumerate(rng.integers(0, k // 32, 19)):
        x[row, 32 * group + row] *= 300 if row % 3 else 1
    y = linear_op.linear(x, [packed(plain)], isa=isa, n_threads=2)
    expected, bound = reference(plain, x)
    assert (np.abs(y - expected) <= bound).all()
    single = [linear_op.linear(row[None], [packed(plain)], isa="scalar") for row in x]
    assert same_bits(y, np.concatenate(single))


def test_zero_scale(fmt, isa, make_plain, packed, rng):
    if fmt.is_float:
        pytest.skip("floats have no scale")
    plain = make_plain(fmt, 16, 256)
    plain.scale[...] = 0
    if plain.minimum.size:
        plain.minimum[...] = 0
    assert not linear_op.linear(activations(rng, 3, 256), [packed(plain)], isa=isa).any()


def test_one_bad_row_spoils_no_other(fmt, isa, make_matrix, rng, same_bits):
    matrix = make_matrix(fmt, 32, 256)
    x = activations(rng, 9, 256)
    good = linear_op.linear(x, [matrix], isa=isa)
    x[4, 17] = np.nan
    x[6, 200] = np.inf
    with np.errstate(invalid="ignore"):
        y = linear_op.linear(x, [matrix], isa=isa)
    kept = [0, 1, 2, 3, 5, 7, 8]
    assert same_bits(y[kept], good[kept])


def test_guard_bytes(fmt, isa, make_plain, packed, guards, rng, same_bits):
    """Buffers at odd addresses, nothing written outside the result."""
    k = 256 if is_two_level(fmt) else 100
    bias = guards.copy(rng.standard_normal(19).astype(np.float32))
    matrix = packed(make_plain(fmt, 19, k), bias)
    inside = dataclasses.replace(matrix, data=guards.copy(matrix.data))
    x = guards.copy(activations(rng, 10, k))
    norm = guards.copy(rng.standard_normal(k).astype(np.float32))
    residual = guards.copy(rng.standard_normal((10, 19)).astype(np.float32))
    options = {"norm_weight": norm, "epsilon": 1e-6, "residual": residual, "isa": isa}
    expected = linear_op.linear(x, [matrix], **options)
    out = guards.copy(np.zeros((10, 19), np.float32))
    linear_op.linear(x, [inside], out=out, n_threads=2, **options)
    assert same_bits(out, expected)


def test_norm(isa, packed, rng, same_bits):
    """RMS norm is that of float64 to the last bits, and quantisation sees the normed row."""
    k = 288
    x = activations(rng, 6, k)
    weight = rng.standard_normal(k).astype(np.float32)
    identity = packed(PlainTensor(FORMATS["f32"], np.eye(k, dtype=np.float32)))
    normed = linear_op.linear(x, [identity], norm_weight=weight, epsilon=1e-5, isa=isa)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(normed, expected, rtol=(k / 16 + 8) * EPSILON)
    codes = rng.integers(0, 16, (24, k), dtype=np.uint8)
    scale = np.full((24, k // 32), 0.1, np.float16)
    matrix = packed(PlainTensor(FORMATS["q4_0"], codes, scale))
    y = linear_op.linear(x, [matrix], norm_weight=weight, epsilon=1e-5, isa=isa)
    assert same_bits(y, linear_op.linear(normed, [matrix], isa=isa))


def test_bias_then_residual(fmt, isa, make_matrix, rng, same_bits):
    matrix = make_matrix(fmt, 37, 256)
    x = activations(rng, 4, 256)
    bias = rng.standard_normal(37).astype(np.float32)
    residual = rng.standard_normal((4, 37)).astype(np.float32)
    plain = linear_op.linear(x, [matrix], isa=isa)
    biased = dataclasses.replace(matrix, bias=bias)
    assert same_bits(linear_op.linear(x, [biased], isa=isa), plain + bias)
    y = linear_op.linear(x, [biased], residual=residual, isa=isa)
    assert same_bits(y, residual + (plain + bias))
    linear_op.linear(x, [biased], residual=residual, out=residual, isa=isa)
    assert same_bits(residual, y)


def test_three_matrices_side_by_side(isa, make_matrix, rng, same_bits):
    """Different formats, none of them a whole number of panels."""
    bias = rng.standard_normal(21).astype(np.float32)
    matrices = [
        make_matrix(FORMATS["q4_k"], 33, 512),
        make_matrix(FORMATS["f16"], 21, 512, bias),
        make_matrix(FORMATS["q6_k"], 16, 512),
    ]
    x = activations(rng, 11, 512)
    y = linear_op.linear(x, matrices, isa=isa, n_threads=2)
    apart = [linear_op.linear(x, [matrix], isa=isa) for matrix in matrices]
    assert same_bits(y, np.concatenate(apart, axis=1))


@pytest.mark.parametrize("names", [("q4_1", "q4_1"), ("q5_0", "q8_0"), ("f32", "q6_k")])
def test_gate(isa, names, make_matrix, rng, same_bits):
    matrices = [make_matrix(FORMATS[name], 41, 256) for name in names]
    x = activations(rng, 19, 256)
    gates, ups = (linear_op.linear(x, [m], isa=isa).astype(np.float64) for m in matrices)
    y = linear_op.linear(x, matrices, gate=True, isa=isa, n_threads=2)
    with np.errstate(over="ignore"):
        expected = gates / (1 + np.exp(-gates)) * ups
    # A gate below -87 is cut there: its silu is about 1e-36 instead of 0.
    np.testing.assert_allclose(y, expected, rtol=8 * EPSILON, atol=1e-28)
    assert same_bits(y, linear_op.linear(x, matrices, gate=True, isa="scalar"))
    one_by_one = [linear_op.linear(row[None], matrices, gate=True, isa=isa) for row in x]
    assert same_bits(y, np.concatenate(one_by_one))


def test_no_rows(isa, make_matrix):
    y = linear_op.linear(np.zeros((0, 256), np.float32), [make_matrix(FORMATS["q4_k"], 7, 256)])
    assert y.shape == (0, 7)
