"""Attention against NumPy float64; trees against chains, chunks against single rows, bit by bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgedec import kernels

Array = npt.NDArray[Any]
N_POSITIONS = 800
CHUNK = 256  # kChunk of attention_plan.h: positions summed at once
TREE = [-1, 0, 0, 1, 2, -1, 3, 5, 4, 8, 1]


@dataclass
class Case:
    """Shapes of one attention and the state its calls share."""

    n_heads: int
    n_kv_heads: int
    head_size: int
    capacity: int
    rope: tuple[Array, Array]
    keys: Array
    values: Array

    def run(self, qkv, parents, past, positions=None, **options):
        """Runs one pass; a row's position is by default ``past`` plus its depth.

        Parents beyond one per row are those of nodes that earlier passes computed.
        """
        parents = np.asarray(parents, np.int64)
        if positions is None:
            positions = past + depths(parents)[len(parents) - len(qkv) :]
        cache = (self.keys, self.values)
        return kernels.attention(qkv, positions, parents, past, self.rope, cache, **options)

    def chain(self, qkv, past=0, **options):
        return self.run(qkv, np.arange(len(qkv)) - 1, past, **options)

    def qkv(self, rng, n_rows):
        width = (self.n_heads + 2 * self.n_kv_heads) * self.head_size
        return rng.standard_normal((n_rows, width)).astype(np.float32)

    def copy(self):
        """Returns a case with a KV cache of its own."""
        return replace(self, keys=self.keys.copy(), values=self.values.copy())

    def stored_keys(self):
        """Returns the keys as [Hkv, C, d]."""
        return self.keys.swapaxes(2, 3).reshape(self.values.shape)


def make_case(n_heads=6, n_kv_heads=2, head_size=64, capacity=128):
    """Returns a case with an empty KV cache that is full of NaN where nobody may look."""
    angles = np.outer(np.arange(N_POSITIONS), 0.7 ** np.arange(head_size // 2))
    rope = (np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
    blocks = (n_kv_heads, capacity // 16, head_size, 16)
    keys = np.full(blocks, np.nan, np.float16)
    values = np.full((n_kv_heads, capacity, head_size), np.nan, np.float16)
    return Case(n_heads, n_kv_heads, head_size, capacity, rope, keys, values)


def depths(parents):
    found = np.zeros(len(parents), np.int64)
    for i, parent in enumerate(parents):
        found[i] = 0 if parent < 0 else found[parent] + 1
    return found


def path_of(parents, row):
    """Returns the ancestors of ``row`` and itself, oldest first."""
    path = [row]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def rotate(x, case, positions):
    """Rotates [rows, heads, d] in float64: pairs are half a head apart."""
    cos, sin = (table[positions][:, None, :].astype(np.float64) for table in case.rope)
    low, high = np.split(x.astype(np.float64), 2, axis=2)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=2)


def split_heads(case, qkv):
    """Returns q [rows, H, d], k and v [rows, Hkv, d]."""
    heads = qkv.reshape(len(qkv), -1, case.head_size)
    return np.split(heads, [case.n_heads, case.n_heads + case.n_kv_heads], axis=1)


def reference(case, qkv, positions, visible):
    """Returns the heads in float64; row i sees the rows ``visible[i]`` of this very ``qkv``.

    Keys and values are rounded to float16 once, as the KV cache does.
    """
    q, k, v = split_heads(case, qkv)
    q = rotate(q, case, positions)
    k = rotate(k, case, positions).astype(np.float16).astype(np.float64)
    v = v.astype(np.float16).astype(np.float64)
    out = np.zeros((len(qkv), case.n_heads, case.head_size))
    for i, rows in enumerate(visible):
        for head in range(case.n_heads):
            kv_head = head // (case.n_heads // case.n_kv_heads)
            scores = k[rows, kv_head] @ q[i, head] / np.sqrt(case.head_size)
            weights = np.exp(scores - scores.max())
            out[i, head] = weights @ v[rows, kv_head] / weights.sum()
    return out.reshape(len(qkv), -1)


SHAPES = [
    {"n_heads": 9, "n_kv_heads": 3, "head_size": 64},
    {"n_heads": 14, "n_kv_heads": 2, "head_size": 64},
    {"n_heads": 4, "n_kv_heads": 4, "head_size": 128},
    {"n_heads": 5, "n_kv_heads": 1, "head_size": 80},
    {"n_heads": 2, "n_kv_heads": 1, "head_size": 6},
    {"n_heads": 3, "n_kv_heads": 3, "head_size": 2},
    {"n_heads": 4, "n_kv_heads": 2, "head_size": 136},
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s.values())))
def test_matches_float64(isa, shape, rng):
    """A prompt in one pass. A key may round to the other of two neighbouring halves."""
    case = make_case(**shape)
    qkv = case.qkv(rng, 37)
    out = case.chain(qkv, isa=isa, n_threads=2)
    expected = reference(case, qkv, np.arange(37), [range(i + 1) for i in range(37)])
    np.testing.assert_allclose(out, expected, atol=1e-3)
    assert np.abs(out - expected).mean() < 1e-5


def test_tree_matches_float64(isa, rng):
    case = make_case()
    prefix, tree = case.qkv(rng, 21), case.qkv(rng, len(TREE))
    case.chain(prefix, isa=isa)
    out = case.run(tree, TREE, 21, isa=isa)
    visible = [[*range(21), *(21 + np.array(path_of(TREE, i)))] for i in range(len(TREE))]
    positions = np.concatenate([np.arange(21), 21 + depths(TREE)])
    both = np.concatenate([prefix, tree])
    expected = reference(case, both, positions, [*[[0]] * 21, *visible])[21:]
    np.testing.assert_allclose(out, expected, atol=1e-3)


def test_positions_are_taken_as_given(isa, rng):
    case = make_case()
    qkv, positions = case.qkv(rng, 5), np.array([3, 100, 7, 7, N_POSITIONS - 1])
    out = case.run(qkv, np.arange(5) - 1, 0, positions, isa=isa)
    expected = reference(case, qkv, positions, [range(i + 1) for i in range(5)])
    np.testing.assert_allclose(out, expected, atol=1e-3)


@pytest.mark.parametrize("past", [0, 15, 16, 17, 40])
def test_tree_row_equals_its_chain(isa, past, rng, same_bits):
    """Each row of a tree gets the bits it would get as the end of a plain chain."""
    prefix, tree = make_case().qkv(rng, past), make_case().qkv(rng, len(TREE))
    case = make_case()
    case.chain(prefix, isa=isa)
    out = case.run(tree, TREE, past, isa=isa, n_threads=2)
    for row in range(len(TREE)):
        alone = make_case()
        alone.chain(prefix, isa=isa)
        path = path_of(TREE, row)
        for at, node in enumerate(path):
            last = alone.chain(tree[node][None], past + at, isa=isa)
        assert same_bits(last[0], out[row])


@pytest.mark.parametrize("past", [0, 13, 32])
@pytest.mark.parametrize("sizes", [[1, 10], [1, 2, 3, 5], [7, 4], [1] * 11], ids=str)
@pytest.mark.parametrize("parents", [TREE, [*range(-1, 10)]], ids=["tree", "chain"])
def test_growing_tree_equals_one_pass(isa, past, sizes, parents, rng, same_bits):
    prefix, tree = make_case().qkv(rng, past), make_case().qkv(rng, len(parents))
    whole, grown = make_case(), make_case()
    for case in (whole, grown):
        case.chain(prefix, isa=isa)
    expected = whole.run(tree, parents, past, isa=isa)
    bounds = pairwise(np.cumsum([0, *sizes]))
    parts = [grown.run(tree[a:b], parents[:b], past, isa=isa, n_threads=2) for a, b in bounds]
    assert same_bits(np.concatenate(parts), expected)
    assert np.array_equal(grown.keys, whole.keys, equal_nan=True)
    assert np.array_equal(grown.values, whole.values, equal_nan=True)


def test_chain_written_as_a_tree(isa, rng, same_bits):
    """A leaf beside a chain takes the tree path through the code; the chain does not notice."""
    qkv = make_case().qkv(rng, 12)
    expected = make_case().chain(qkv[:11], isa=isa)
    parents = [*range(-1, 10), 4]
    assert same_bits(make_case().run(qkv, parents, 0, isa=isa)[:11], expected)


@pytest.mark.parametrize("shape", SHAPES[::2], ids=lambda s: "-".join(map(str, s.values())))
def test_chunks_equal_single_rows(isa, shape, rng, same_bits):
    qkv = make_case(**shape).qkv(rng, 50)
    single = make_case(**shape)
    rows = [single.chain(row[None], i, isa=isa) for i, row in enumerate(qkv)]
    expected = np.concatenate(rows)
    for n_threads in (1, 2):
        for sizes in ([50], [1, 2, 3, 4, 5, 6, 29], [17, 33], [16, 16, 18]):
            case = make_case(**shape)
            starts = np.cumsum([0, *sizes])
            chunks = [
                case.chain(qkv[a:b], int(a), isa=isa, n_threads=n_threads)
                for a, b in pairwise(starts)
            ]
            assert same_bits(np.concatenate(chunks), expected)
            assert np.array_equal(case.keys, single.keys, equal_nan=True)
            assert np.array_equal(case.values, single.values, equal_nan=True)


LONG = {"n_heads": 3, "n_kv_heads": 1, "head_size": 20, "capacity": 800}
DEEP_TREE = [*range(-1, 9), 4, 10, 9, 11, 12, 14, 13, 15, 3, -1]
"""Two branches of ten and more nodes."""


@pytest.mark.parametrize("n_rows", [CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 20])
def test_many_chunks_match_float64(isa, n_rows, rng):
    case = make_case(**LONG)
    qkv = case.qkv(rng, n_rows)
    out = case.chain(qkv, isa=isa, n_threads=2)
    expected = reference(case, qkv, np.arange(n_rows), [range(i + 1) for i in range(n_rows)])
    np.testing.assert_allclose(out, expected, atol=1e-3)
    assert np.abs(out - expected).mean() < 1e-5


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("sizes", [[300, 1, 299], [255, 1, 1, 343], [40, 8, 420, 132]], ids=str)
def test_long_passes_equal_single_rows(isa, sizes, n_threads, rng, same_bits):
    """Few rows have their chunks computed side by side, many rows one after the other."""
    single, case = make_case(**LONG), make_case(**LONG)
    qkv = case.qkv(rng, 600)
    expected = [single.chain(row[None], i, isa=isa) for i, row in enumerate(qkv)]
    bounds = pairwise(np.cumsum([0, *sizes]))
    passes = [case.chain(qkv[a:b], int(a), isa=isa, n_threads=n_threads) for a, b in bounds]
    assert same_bits(np.concatenate(passes), np.concatenate(expected))


@pytest.mark.parametrize("past", [CHUNK - 5, CHUNK, 2 * CHUNK - 1, 3 * CHUNK - 10])
def test_tree_row_equals_its_chain_across_chunks(isa, past, rng, same_bits):
    prefix, tree = make_case(**LONG).qkv(rng, past), make_case(**LONG).qkv(rng, len(DEEP_TREE))
    start = make_case(**LONG)
    start.chain(prefix, isa=isa, n_threads=2)
    out = start.copy().run(tree, DEEP_TREE, past, isa=isa, n_threads=2)
    for row in range(len(DEEP_TREE)):
        path = path_of(DEEP_TREE, row)
        alone = start.copy().chain(tree[path], past, isa=isa)
        assert same_bits(alone[-1], out[row])
    grown = start.copy()
    first = grown.run(tree[:3], DEEP_TREE[:3], past, isa=isa)
    rest = grown.run(tree[3:], DEEP_TREE, past, isa=isa, n_threads=2)
    assert same_bits(np.concatenate([first, rest]), out)


def test_long_simd_equals_scalar(simd, rng, same_bits):
    results = []
    qkv, tree = make_case(**LONG).qkv(rng, 700), make_case(**LONG).qkv(rng, len(DEEP_TREE))
    for isa in ("scalar", simd):
        case = make_case(**LONG)
        chain = case.chain(qkv, isa=isa)
        results.append((chain, case.run(tree, DEEP_TREE, 700, isa=isa)))
    for ours, expected in zip(*results, strict=True):
        assert same_bits(ours, expected)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s.values())))
def test_simd_equals_scalar(simd, shape, rng, same_bits):
    prefix, tree = make_case(**shape).qkv(rng, 35), make_case(**shape).qkv(rng, len(TREE))
    results = []
    for isa in ("scalar", simd):
        case = make_case(**shape)
        results.append((case.chain(prefix, isa=isa), case.run(tree, TREE, 35, isa=isa), case))
    (chain, branches, case), (simd_chain, simd_branches, simd_case) = results
    assert same_bits(chain, simd_chain)
    assert same_bits(branches, simd_branches)
    assert np.array_equal(case.keys, simd_case.keys, equal_nan=True)
    assert np.array_equal(case.values, simd_case.values, equal_nan=True)


def test_kv_cache_holds_rounded_rows(isa, rng):
    """Exactly rows past.. are written: values rounded once, keys rotated and rounded."""
    case = make_case(capacity=64)
    case.keys[...] = 7
    case.values[...] = 7
    qkv = case.qkv(rng, 9)
    case.chain(qkv, 20, isa=isa)
    _, k, v = split_heads(case, qkv)
    assert np.array_equal(case.values[:, 20:29], v.swapaxes(0, 1).astype(np.float16))
    rotated = rotate(k, case, np.arange(20, 29)).swapaxes(0, 1)
    np.testing.assert_allclose(case.stored_keys()[:, 20:29], rotated, rtol=2**-11 * 1.01, atol=1e-6)
    for kept in (case.values, case.stored_keys()):
        assert (np.delete(kept, np.s_[20:29], axis=1) == 7).all()


def test_full_to_the_last_row(isa, rng):
    case = make_case(capacity=32)
    qkv = case.qkv(rng, 32)
    out = case.chain(qkv, isa=isa)
    expected = reference(case, qkv, np.arange(32), [range(i + 1) for i in range(32)])
    np.testing.assert_allclose(out, expected, atol=1e-3)


def test_extreme_scores(isa, rng, same_bits):
    """Scores far apart: the largest wins, nothing overflows."""
    case, other = make_case(), make_case()
    qkv = case.qkv(rng, 20) * np.float32(300)
    out = case.chain(qkv, isa=isa)
    assert np.isfinite(out).all()
    assert same_bits(out, other.chain(qkv, isa="scalar"))
    zeros = make_case().chain(np.zeros_like(qkv), isa=isa)
    assert not zeros.any()


def test_guard_bytes(isa, guards, rng, same_bits):
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


def test_no_rows(isa, rng):
    case = make_case()
    assert case.chain(case.qkv(rng, 0), isa=isa).shape == (0, 6 * 64)
