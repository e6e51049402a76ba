"""Statistics of logits rows against float64, at the edges of blocks and vectors."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.runtime.sequences.row_stats import RowStats

from ..doors import row_stats_op

BLOCK = 4096  # ids that one task looks at
SIZES = (1, 2, 7, 8, 9, 15, 16, 17, 31, 33, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 7)
LARGE_SIZES = (49151, 49152, 49153)


def stats_of(logits, **options):
    return RowStats(*row_stats_op.row_stats(logits, **options))


def expect_close(stats, logits):
    """Holds ``stats`` against float64; what is copied or counted must be equal."""
    expected = RowStats.of(logits)
    np.testing.assert_array_equal(stats.argmax, expected.argmax)
    np.testing.assert_array_equal(stats.top_ids, expected.top_ids)
    np.testing.assert_array_equal(stats.top_logits, expected.top_logits)
    np.testing.assert_allclose(stats.log_sum_exp, expected.log_sum_exp, rtol=1e-6, atol=2e-6)
    np.testing.assert_allclose(stats.entropy, expected.entropy, rtol=1e-5, atol=5e-6)


def rows_of_many_kinds(rng, n_ids):
    """Returns rows a model may give, and rows none should."""
    peaked = rng.standard_normal(n_ids)
    peaked[rng.integers(n_ids)] = 60
    masked = rng.standard_normal(n_ids)
    masked[rng.random(n_ids) < 0.9] = -np.inf
    masked[-1] = 1.5
    nearly_all_masked = np.full(n_ids, -np.inf)
    nearly_all_masked[n_ids // 2] = -3
    rows = [
        4 * rng.standard_normal(n_ids),
        peaked,
        masked,
        nearly_all_masked,
        np.zeros(n_ids),
        np.full(n_ids, -1e30),
        3e38 * rng.uniform(-1, 1, n_ids),
        rng.integers(-3, 3, n_ids),  # many ties
        np.sort(rng.standard_normal(n_ids)),  # every id is the largest so far
        -np.sort(rng.standard_normal(n_ids)),
        1e-30 * rng.standard_normal(n_ids),
        np.where(rng.random(n_ids) < 0.5, -0.0, 0.0),
    ]
    return np.array(rows).astype(np.float32)


@pytest.mark.parametrize("n_ids", SIZES)
def test_against_float64(isa, rng, n_ids):
    logits = rows_of_many_kinds(rng, n_ids)
    expect_close(stats_of(logits, isa=isa), logits)


@pytest.mark.parametrize("n_ids", LARGE_SIZES)
def test_vocabularies(rng, n_ids):
    logits = rows_of_many_kinds(rng, n_ids)
    expect_close(stats_of(logits), logits)


def test_known_values(isa):
    logits = np.log(np.array([[0.5, 0.25, 0.125, 0.125]], np.float32))
    stats = stats_of(logits, isa=isa)
    assert stats.top_ids.tolist() == [[0, 1, 2, 3, -1, -1, -1, -1]]
    assert stats.log_sum_exp == pytest.approx(0, abs=1e-7)
    assert stats.entropy == pytest.approx(1.75 * np.log(2))
    uniform = stats_of(np.full((1, 50000), 7.0, np.float32), isa=isa)
    assert uniform.entropy == pytest.approx(np.log(50000))
    assert uniform.log_sum_exp == pytest.approx(7 + np.log(50000))
    certain = stats_of(np.array([[3.0]], np.float32), isa=isa)
    assert (certain.entropy, certain.log_sum_exp) == (0, 3)


@pytest.mark.parametrize("place", [0, 15, 16, BLOCK - 1, BLOCK, 2 * BLOCK, 2 * BLOCK + 20])
def test_the_largest_anywhere(isa, rng, place):
    logits = rng.uniform(-1, 0, (1, 2 * BLOCK + 21)).astype(np.float32)
    logits[0, place] = 1
    expect_close(stats_of(logits, isa=isa), logits)
    logits[0, [3, place]] = 2
    assert stats_of(logits, isa=isa).argmax == min(3, place)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 5, 16, BLOCK - 1, BLOCK + 3])
def test_no_finite_largest_logit(isa, rng, bad, place):
    logits = rng.standard_normal((2, BLOCK + 5)).astype(np.float32)
    logits[0, place] = bad
    stats = stats_of(logits, isa=isa)
    assert stats.argmax[0] == logits[0].argmax() == place
    np.testing.assert_array_equal(stats.top_logits[0, 0], np.float32(bad))
    assert np.isnan([stats.log_sum_exp[0], stats.entropy[0]]).all()
    assert np.isfinite([stats.log_sum_exp[1], stats.entropy[1]]).all()
    expect_close(stats, logits)


def test_not_a_number_comes_before_infinity(isa, rng):
    logits = rng.standard_normal((1, BLOCK + 50)).astype(np.float32)
    logits[0, [4, 90]], logits[0, [40, BLOCK + 9]] = np.inf, np.nan
    stats = stats_of(logits, isa=isa)
    assert stats.top_ids[0, :4].tolist() == [40, BLOCK + 9, 4, 90]
    expect_close(stats, logits)
    expect_close(stats_of(np.full((1, 99), np.nan, np.float32), isa=isa), np.full((1, 99), np.nan))


def test_nothing_but_minus_infinity(isa):
    logits = np.full((1, 20), -np.inf, np.float32)
    stats = stats_of(logits, isa=isa)
    assert stats.top_ids.tolist() == [list(range(8))]
    assert np.isnan([stats.log_sum_exp[0], stats.entropy[0]]).all()


def bits(stats):
    return [array.tobytes() for array in vars(stats).values()]


@pytest.mark.parametrize("n_ids", [9, BLOCK + 100, 49152])
def test_same_bits_on_every_isa(simd, rng, n_ids):
    logits = rows_of_many_kinds(rng, n_ids)
    assert bits(stats_of(logits, isa=simd)) == bits(stats_of(logits, isa="scalar"))


def test_a_row_alone_or_among_others(isa, rng):
    logits = rows_of_many_kinds(rng, 2 * BLOCK + 9)
    whole = stats_of(logits, isa=isa, n_threads=3)
    for i in range(len(logits)):
        alone = stats_of(logits[i : i + 1], isa=isa)
        assert bits(alone) == [array[i : i + 1].tobytes() for array in vars(whole).values()]


def test_no_byte_beyond_the_logits_matters(isa, rng, guards):
    for n_ids in (5, 17, BLOCK + 1):
        logits = rng.standard_normal((2, n_ids)).astype(np.float32)
        assert bits(stats_of(guards.copy(logits), isa=isa)) == bits(stats_of(logits, isa=isa))


def test_no_rows():
    stats = stats_of(np.empty((0, 30), np.float32))
    assert [array.shape for array in vars(stats).values()] == [(0,), (0,), (0,), (0, 8), (0, 8)]


def test_wrong_arrays_are_refused():
    with pytest.raises(ValueError, match=r"shape \[2, 0\], expected at least one id"):
        row_stats_op.row_stats(np.empty((2, 0), np.float32))
    with pytest.raises(ValueError, match=r"logits: got float64 \[2, 3\]"):
        row_stats_op.row_stats(np.zeros((2, 3)))


def run_node(logits):
    from .op_node import open_node

    feeds = {"logits": logits}
    return open_node("RowStats", ["logits"], feeds, {}, {}, n_threads=2).run(None, feeds)


@pytest.mark.parametrize("shape", [(1, 9, BLOCK + 60), (3, 2, 70), (2, 30), (30,), (1, 0, 20)])
def test_inside_onnx_runtime(rng, shape):
    logits = rng.standard_normal(shape).astype(np.float32)
    values = run_node(logits)
    expected = stats_of(logits.reshape(-1, shape[-1]))
    assert [value.tobytes() for value in values] == bits(expected)
    assert [value.shape for value in values] == [array.shape for array in vars(expected).values()]


@pytest.mark.parametrize(("shape", "text"), [((), r"\[\]"), ((1, 2, 0), r"\[1, 2, 0\]")])
def test_no_ids_inside_onnx_runtime(shape, text):
    with pytest.raises(Exception, match=rf"edgedec.RowStats: logits has shape {text}, expected"):
        run_node(np.zeros(shape, np.float32))
