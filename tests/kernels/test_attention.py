"""Attention against NumPy float64, and what it leaves in the KV cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ..doors import attention_op

CHUNK = 256  # kChunk of attention_plan.h: positions summed at once
N_POSITIONS = 800  # of the rotations
CLOSE = 2e-5  # of float32 sums over some hundred values of about 1
TREE = [-1, 0, 0, 1, 2, -1, 3, 5, 4, 8, 1]
LONG = {"n_heads": 3, "n_kv_heads": 1, "head_size": 20, "capacity": 800}
SHAPES = [
    {"n_heads": 9, "n_kv_heads": 3, "head_size": 64},
    {"n_heads": 14, "n_kv_heads": 2, "head_size": 64},
    {"n_heads": 4, "n_kv_heads": 4, "head_size": 128},
    {"n_heads": 5, "n_kv_heads": 1, "head_size": 80},
    {"n_heads": 2, "n_kv_heads": 1, "head_size": 6},
    {"n_heads": 3, "n_kv_heads": 3, "head_size": 2},
    {"n_heads": 4, "n_kv_heads": 2, "head_size": 136},
]


def reference(case, qkv, positions, slots):
    """Returns the heads in float64; row i sees the KV cache, as it is now, at ``slots[i]``.

    With offsets of keys, a slot is a position.
    """
    q, _, _ = case.split(qkv)
    q = case.turn(q, positions)
    keys, values = case.stored()
    is_seen = np.zeros((len(qkv), keys.shape[1]), bool)
    for i, seen in enumerate(slots):
        is_seen[i, list(seen)] = True
    used = np.flatnonzero(is_seen.any(axis=0))  # the others are NaN
    keys, values = keys[:, used], values[:, used]
    if case.key_offsets is not None:
        offsets = np.broadcast_to(case.key_offsets, (len(used), *case.key_offsets.shape))
        keys = keys + case.turn(offsets, used).swapaxes(0, 1)
    out = np.zeros((len(qkv), case.n_heads, case.head_size))
    for head in range(case.n_heads):
        kv_head = head // (case.n_heads // case.n_kv_heads)
        scores = q[:, head] @ keys[kv_head].T / np.sqrt(case.head_size)
        scores = np.where(is_seen[:, used], scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weights @ values[kv_head] / weights.sum(axis=1, keepdims=True)
    return out.reshape(len(qkv), -1)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s.values())))
def test_matches_float64(isa, make_case, shape, rng):
    """A prompt in one pass. A key may round to the other of two neighbouring halves."""
    case = make_case(**shape)
    qkv = case.qkv(rng, 37)
    out = case.chain(qkv, isa=isa, n_threads=2)
    expected = reference(case, qkv, np.arange(37), [range(i + 1) for i in range(37)])
    np.testing.assert_allclose(out, expected, atol=CLOSE)


def test_tree_matches_float64(isa, make_case, path_of, rng):
    case = make_case()
    prefix, tree = case.qkv(rng, 21), case.qkv(rng, len(TREE))
    case.chain(prefix, isa=isa)
    out = case.run(tree, TREE, 21, isa=isa)
    paths = [path_of(TREE, i) for i in range(len(TREE))]
    positions = np.array([20 + len(path) for path in paths])
    slots = [[*range(21), *(21 + node for node in path)] for path in paths]
    np.testing.assert_allclose(out, reference(case, tree, positions, slots), atol=CLOSE)


def test_positions_are_taken_as_given(isa, make_case, rng):
    case = make_case()
    qkv, positions = case.qkv(rng, 5), np.array([3, 100, 7, 7, N_POSITIONS - 1])
    out = case.run(qkv, np.arange(5) - 1, 0, positions, isa=isa)
    expected = reference(case, qkv, positions, [range(i + 1) for i in range(5)])
    np.testing.assert_allclose(out, expected, atol=CLOSE)


@pytest.mark.parametrize("n_rows", [CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 20])
def test_many_chunks_match_float64(isa, make_case, n_rows, rng):
    case = make_case(**LONG)
    qkv = case.qkv(rng, n_rows)
    out = case.chain(qkv, isa=isa, n_threads=2)
    expected = reference(case, qkv, np.arange(n_rows), [range(i + 1) for i in range(n_rows)])
    np.testing.assert_allclose(out, expected, atol=CLOSE)


def test_kv_cache_holds_the_rows(isa, make_case, rng):
    """Keys as their products are taken, values as they are, rounded to a half or to a code.

    Levels of k5v4 are those that leave the smallest error of normal numbers, 0.0025 of a deviation
    squared for keys and 0.0095 for values: rows of 64 have about that.
    """
    case = make_case(capacity=64)
    qkv = case.qkv(rng, 9)
    case.chain(qkv, 20, isa=isa)
    _, k, v = case.split(qkv)
    given = (case.turn(k, np.arange(20, 29)).swapaxes(0, 1), v.swapaxes(0, 1))
    for index, (stored, rows) in enumerate(zip(case.stored(), given, strict=True)):
        error = np.abs(stored[:, 20:29] - rows)
        if case.kv_format == "k5v4":
            low, high = ((0.035, 0.06), (0.07, 0.12))[index]
            assert low**2 < (error**2).mean() / (rows**2).mean() < high**2
        elif case.kv_format == "int8":
            scales = case.scales()[index][:, 20:29, None]
            largest = np.abs(rows).max(axis=2, keepdims=True)
            np.testing.assert_allclose(scales, largest / 127, rtol=2**-11 * 1.01)
            assert (error <= 0.501 * scales).all()
            assert 0.2 < (error / scales).mean() < 0.3
        else:
            assert (error <= 2**-11 * 1.01 * np.abs(rows) + 1e-6).all()


def test_kv_cache_keeps_other_rows(isa, make_case, rng):
    case = make_case(capacity=64)
    before = case.copy()
    case.chain(case.qkv(rng, 9), 20, isa=isa)
    for now, then in zip(case.stored(), before.stored(), strict=True):
        assert not np.isnan(now[:, 20:29]).any()
        np.testing.assert_array_equal(now[:, :20], then[:, :20])
        np.testing.assert_array_equal(now[:, 29:], then[:, 29:])


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s.values())))
def test_int8_is_close_to_exact_rows(isa, make_int8_case, shape, rng):
    """The whole error, bounded: codes are half a step off, and scores and values with them.

    A score is off by at most the sum of its query's sizes times half a step of the key. If none is
    off by more than e, no weight is off by more than a factor of exp(2 e); values add half a step.
    """
    case = make_int8_case(**shape)
    d, qkv = case.head_size, case.qkv(rng, 37)
    out = case.chain(qkv, isa=isa).reshape(37, case.n_heads, d)
    q, k, v = case.split(qkv)
    q, k = (case.turn(heads, np.arange(37)) for heads in (q, k))
    key_steps, value_steps = (0.501 * scales[:, :37] for scales in case.scales())
    group = case.n_heads // case.n_kv_heads
    for i, head in np.ndindex(37, case.n_heads):
        kv_head, seen = head // group, slice(i + 1)
        scores = k[seen, kv_head] @ q[i, head] / np.sqrt(d)
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        off = (np.abs(q[i, head]).sum() * key_steps[kv_head, seen] / np.sqrt(d)).max()
        bound = (
            np.expm1(2 * off) * weights @ np.abs(v[seen, kv_head])
            + value_steps[kv_head, seen].max()
        )
        error = np.abs(out[i, head] - weights @ v[seen, kv_head])
        assert (error <= bound + CLOSE).all()
    assert np.abs(out[0] - np.repeat(v[0], group, axis=0)).max() > CLOSE  # it is no float16


def test_one_large_channel_costs_codes_little(isa, make_case, rng):
    """A channel of the keys far above the others, as trained models have it, is spread over all.

    Without that the other channels would share a few codes: their error would be eight times this.
    With offsets of keys it is not there at all.
    """
    case = make_case(n_heads=2, n_kv_heads=1)
    qkv = case.qkv(rng, 100)
    qkv[:, 2 * 64 + 7] = 200
    qkv[:, 2 * 64 + 32 + 7] = 0
    case.chain(qkv, isa=isa)
    _, k, _ = case.split(qkv)
    keys, _ = case.stored()
    error = keys[0, :100] - case.turn(k, np.arange(100))[:, 0]
    assert np.sqrt((error**2).mean()) < (3 if case.kv_format == "k5v4" else 0.1)
    if case.has_codes:
        offset = np.zeros((1, 64), np.float32)
        offset[0, 7] = 200
        case = replace(case, key_offsets=offset)
        case.chain(qkv, isa=isa)
        keys, _ = case.stored()
        error = keys[0, :100] - case.turn(k - offset, np.arange(100))[:, 0]
        assert np.sqrt((error**2).mean()) < (0.12 if case.kv_format == "k5v4" else 0.01)


@pytest.fixture
def make_offset_case(make_case, rng):
    """Returns a maker of cases whose keys have offsets, but for some pairs of channels."""

    def make(**shape):
        case = make_case(**shape)
        offsets = 4 * rng.standard_normal((case.n_kv_heads, case.head_size)).astype(np.float32)
        offsets[0, :: case.head_size // 2] = 0
        return replace(case, key_offsets=offsets)

    return make


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s.values())))
def test_offsets_match_float64(isa, make_offset_case, shape, rng, same_bits):
    case = make_offset_case(**shape)
    other, qkv = case.copy(), case.qkv(rng, 75)
    out = case.chain(qkv, isa=isa, n_threads=2)
    expected = reference(case, qkv, np.arange(75), [range(i + 1) for i in range(75)])
    np.testing.assert_allclose(out, expected, atol=5 * CLOSE)  # scores of about 5 times the size
    assert same_bits(out, other.chain(qkv, isa="scalar"))


def test_offsets_of_a_tree_match_its_chains(isa, make_offset_case, path_of, rng, same_bits):
    case = make_offset_case(capacity=352)
    prefix, tree = case.qkv(rng, 250), case.qkv(rng, len(TREE))
    case.chain(prefix, isa=isa)
    out = case.copy().run(tree, TREE, 250, isa=isa, n_threads=2)
    for i in range(len(TREE)):
        path = path_of(TREE, i)
        assert same_bits(out[path], case.copy().chain(tree[path], 250, isa=isa))


def test_offsets_leave_exact_keys_as_they_are(isa, make_case_of, rng):
    """Float16 keys without their offset, and scores that get it back."""
    plain = make_case_of("float16", **LONG)
    offsets = 4 * rng.standard_normal((1, plain.head_size)).astype(np.float32)
    qkv = plain.qkv(rng, 2 * CHUNK + 20)
    for scoring in (
        attention_op.Scoring(),
        attention_op.Scoring(window=70, softcap=20.0, scale=0.1),
    ):
        out = replace(plain.copy(), key_offsets=offsets).chain(qkv, isa=isa, scoring=scoring)
        expected = plain.copy().chain(qkv, isa=isa, scoring=scoring)
        np.testing.assert_allclose(out, expected, atol=0.01)  # halves of keys five times as long


@pytest.mark.parametrize("kv_format", ["int8", "k5v4"])
@pytest.mark.parametrize("size", [0, 1e-6, 1e-38, 1e9])
def test_sizes_beyond_a_half(isa, make_case_of, kv_format, size, rng, same_bits):
    """Rows too small or too large for the scale of a row lose precision, not their senses."""
    case, other = make_case_of(kv_format), make_case_of(kv_format)
    qkv = case.qkv(rng, 20) * np.float32(size)
    out = case.chain(qkv, isa=isa)
    assert np.isfinite(out).all()
    assert np.abs(out).max() <= max(1e-6, 1.01 * np.abs(qkv).max())
    assert same_bits(out, other.chain(qkv, isa="scalar"))


def test_full_to_the_last_row(isa, make_case, rng):
    case = make_case(capacity=32)
    qkv = case.qkv(rng, 32)
    out = case.chain(qkv, isa=isa)
    expected = reference(case, qkv, np.arange(32), [range(i + 1) for i in range(32)])
    np.testing.assert_allclose(out, expected, atol=CLOSE)


def test_extreme_scores(isa, make_case, rng, same_bits):
    """Scores far apart: the largest wins, nothing overflows."""
    case, other = make_case(), make_case()
    qkv = case.qkv(rng, 20) * np.float32(300)
    out = case.chain(qkv, isa=isa)
    assert np.isfinite(out).all()
    assert same_bits(out, other.chain(qkv, isa="scalar"))
    zeros = make_case().chain(np.zeros_like(qkv), isa=isa)
    assert not zeros.any()


def test_guard_bytes(isa, make_case, guards, rng, same_bits):
    plain, case = make_case(head_size=12, capacity=32), make_case(head_size=12, capacity=32)
    case.keys, case.values = guards.copy(case.keys), guards.copy(case.values)
    case.rope = (guards.copy(case.rope[0]), guards.copy(case.rope[1]))
    qkv = guards.copy(case.qkv(rng, 32 - len(TREE)))
    tree = guards.copy(case.qkv(rng, len(TREE)))
    out = guards.copy(np.zeros((len(tree), case.n_heads * case.head_size), np.float32))
    for one in (plain, case):
        one.chain(qkv, isa=isa, n_threads=2)
    case.run(tree, guards.copy(np.array(TREE)), len(qkv), isa=isa, out=out, n_threads=2)
    assert same_bits(out, plain.run(tree, TREE, len(qkv), isa=isa))


def test_no_rows(isa, make_case, rng):
    case = make_case()
    assert case.chain(case.qkv(rng, 0), isa=isa).shape == (0, 6 * 64)


def test_queries_over_another_layers_rows(isa, make_case, rng):
    """They see what the other layer's pass has written, and write nothing."""
    case = make_case()
    prefix, tree = case.qkv(rng, 21), case.qkv(rng, len(TREE))
    case.chain(prefix, isa=isa)
    expected = case.run(tree, TREE, 21, isa=isa)
    before = case.copy()
    queries = np.ascontiguousarray(tree[:, : case.n_heads * case.head_size])
    out = case.run(queries, TREE, 21, isa=isa, shares_kv=True)
    np.testing.assert_array_equal(out.view(np.uint32), expected.view(np.uint32))
    for now, then in zip(case.stored(), before.stored(), strict=True):
        np.testing.assert_array_equal(now, then)


def test_all_nodes_are_seen(isa, make_case, rng):
    """Those of earlier passes and later rows, too; places in the text are in any order."""
    case = make_case()
    kept, qkv = case.qkv(rng, 21), case.qkv(rng, 37)
    places = rng.permutation(58)
    case.run(kept, np.full(21, -1), 0, places[:21], isa=isa, sees_all=True)
    first, rest = np.split(qkv, [8])
    parents = np.full(37, -1)
    case.run(first, parents[:8], 21, places[21:29], isa=isa, sees_all=True)
    out = case.run(rest, parents, 21, places[29:], isa=isa, n_threads=2, sees_all=True)
    expected = reference(case, rest, places[29:], [range(58)] * 29)
    np.testing.assert_allclose(out, expected, atol=CLOSE)


@pytest.mark.parametrize("n_rows", [CHUNK - 1, CHUNK + 1, 2 * CHUNK + 20])
def test_all_nodes_of_many_chunks_are_seen(isa, make_case, n_rows, rng):
    case = make_case(**LONG)
    qkv = case.qkv(rng, n_rows)
    out = case.chain(qkv, isa=isa, n_threads=2, sees_all=True)
    expected = reference(case, qkv, np.arange(n_rows), [range(n_rows)] * n_rows)
    np.testing.assert_allclose(out, expected, atol=CLOSE)


@pytest.mark.parametrize("window", [1, 4, 37, 300, 2**63 - 1])
@pytest.mark.parametrize(("n_past", "n_rows"), [(0, 29), (0, 2 * CHUNK + 20), (270, 300)])
def test_a_window_goes_both_ways_where_all_nodes_are_seen(
    isa, make_case, window, n_past, n_rows, rng
):
    case = make_case(**LONG)
    scoring = attention_op.Scoring(window=window)
    case.chain(case.qkv(rng, max(n_past, 1)), isa=isa)
    qkv, places = case.qkv(rng, n_rows), range(n_past, n_past + n_rows)
    out = case.chain(qkv, n_past, isa=isa, n_threads=2, scoring=scoring, sees_all=True)
    seen = [range(max(0, i + 1 - window), min(n_past + n_rows, i + window)) for i in places]
    expected = reference(case, qkv, np.array(places), seen)
    np.testing.assert_allclose(out, expected, atol=CLOSE)
