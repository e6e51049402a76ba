"""Trees against chains, chunks against single rows, SIMD against scalar: attention bit by bit."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

CHUNK = 256  # kChunk of attention_plan.h: positions summed at once
TREE = [-1, 0, 0, 1, 2, -1, 3, 5, 4, 8, 1]
SHAPES = [
    {"n_heads": 9, "n_kv_heads": 3, "head_size": 64},
    {"n_heads": 14, "n_kv_heads": 2, "head_size": 64},
    {"n_heads": 4, "n_kv_heads": 4, "head_size": 128},
    {"n_heads": 5, "n_kv_heads": 1, "head_size": 80},
    {"n_heads": 2, "n_kv_heads": 1, "head_size": 6},
    {"n_heads": 3, "n_kv_heads": 3, "head_size": 2},
    {"n_heads": 4, "n_kv_heads": 2, "head_size": 136},
]


@pytest.mark.parametrize("past", [0, 15, 16, 17, 40])
def test_tree_row_equals_its_chain(isa, make_case, path_of, past, rng, same_bits):
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
def test_growing_tree_equals_one_pass(isa, make_case, past, sizes, parents, rng, same_bits):
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


def test_chain_written_as_a_tree(isa, make_case, rng, same_bits):
    """A leaf beside a chain takes the tree path through the code; the chain does not notice."""
    qkv = make_case().qkv(rng, 12)
    expected = make_case().chain(qkv[:11], isa=isa)
    parents = [*range(-1, 10), 4]
    assert same_bits(make_case().run(qkv, parents, 0, isa=isa)[:11], expected)


@pytest.mark.parametrize("shape", SHAPES[::2], ids=lambda s: "-".join(map(str, s.values())))
def test_chunks_equal_single_rows(isa, make_case, shape, rng, same_bits):
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


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("sizes", [[300, 1, 299], [255, 1, 1, 343], [40, 8, 420, 132]], ids=str)
def test_long_passes_equal_single_rows(isa, make_case, sizes, n_threads, rng, same_bits):
    """Few rows have their chunks computed side by side, many rows one after the other."""
    single, case = make_case(**LONG), make_case(**LONG)
    qkv = case.qkv(rng, 600)
    expected = [single.chain(row[None], i, isa=isa) for i, row in enumerate(qkv)]
    bounds = pairwise(np.cumsum([0, *sizes]))
    passes = [case.chain(qkv[a:b], int(a), isa=isa, n_threads=n_threads) for a, b in bounds]
    assert same_bits(np.concatenate(passes), np.concatenate(expected))


@pytest.mark.parametrize("past", [CHUNK - 5, CHUNK, 2 * CHUNK - 1, 3 * CHUNK - 10])
def test_tree_row_equals_its_chain_across_chunks(isa, make_case, path_of, past, rng, same_bits):
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


def test_long_simd_equals_scalar(simd, make_case, rng, same_bits):
    results = []
    qkv, tree = make_case(**LONG).qkv(rng, 700), make_case(**LONG).qkv(rng, len(DEEP_TREE))
    for isa in ("scalar", simd):
        case = make_case(**LONG)
        chain = case.chain(qkv, isa=isa)
        results.append((chain, case.run(tree, DEEP_TREE, 700, isa=isa)))
    for ours, expected in zip(*results, strict=True):
        assert same_bits(ours, expected)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s.values())))
def test_simd_equals_scalar(simd, make_case, shape, rng, same_bits):
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
