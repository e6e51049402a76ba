"""Attention over a KV cache that holds less than the text: the bits of one that holds all."""

from __future__ import annotations

import numpy as np
import pytest

from ..doors.attention_op import Scoring

TREE = [-1, 0, 0, 1, 2, -1, 3, 5, 4, 8, 1]
SHAPE = {"n_heads": 4, "n_kv_heads": 2, "head_size": 20}
WINDOWS = [(1, 32), (24, 64), (24, 96), (33, 64), (300, 352)]  # and rows of the ring


def feed(case, qkv, sizes, scoring, isa):
    """Returns the heads of a text in passes of ``sizes``, again and again."""
    parts, past = [], 0
    while past < len(qkv):
        n = sizes[len(parts) % len(sizes)]
        part = qkv[past : past + n]
        parts.append(case.chain(part, past, isa=isa, scoring=scoring, n_threads=2))
        past += len(part)
    return np.concatenate(parts)


@pytest.mark.parametrize(("window", "n_rows"), WINDOWS)
def test_text_through_a_ring(isa, make_case, same_bits, window, n_rows, rng):
    n_tokens = 2 * n_rows + 41
    ring, whole = (make_case(**SHAPE, capacity=c) for c in (n_rows, 800))
    qkv, scoring = whole.qkv(rng, n_tokens), Scoring(window=window, softcap=2.0)
    expected = feed(whole, qkv, [n_tokens], scoring, isa)
    assert np.isfinite(expected).all()
    assert same_bits(feed(ring, qkv, [1, n_rows - window + 1, 3, 16], scoring, isa), expected)


@pytest.mark.parametrize("past", [40, 57, 62, 64, 130])
def test_tree_across_the_end_of_a_ring(isa, make_case, same_bits, past, rng):
    """The tree in two passes, the second over the rows that the first left."""
    ring, whole = (make_case(**SHAPE, capacity=c) for c in (64, 160))
    prefix, tree = whole.qkv(rng, past), whole.qkv(rng, len(TREE))
    scoring = Scoring(window=24)
    found = []
    for case in (ring, whole):
        feed(case, prefix, [8], scoring, isa)
        parts = [
            case.run(tree[:5], TREE[:5], past, isa=isa, scoring=scoring),
            case.run(tree[5:], TREE, past, isa=isa, scoring=scoring, n_threads=2),
        ]
        found.append(np.concatenate(parts))
    assert np.isfinite(found[1]).all()
    assert same_bits(found[0], found[1])


def test_what_the_first_row_sees_has_to_fit(make_case, rng):
    case = make_case(**SHAPE, capacity=32)
    qkv = case.qkv(rng, 12)
    case.chain(qkv, 700, scoring=Scoring(window=21))
    for past, window in ((700, 22), (21, 0), (21, 22)):
        with pytest.raises(
            ValueError, match=f"past {past} \\+ 12 rows do not fit a KV cache of 32"
        ):
            case.chain(qkv, past, scoring=Scoring(window=window))
    for past in (2**31 + 1, 2**62):
        with pytest.raises(ValueError, match=f"past is {past}, expected 0 to 2147483648"):
            case.chain(qkv, past, scoring=Scoring(window=21))
