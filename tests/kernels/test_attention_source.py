"""Attention of texts with a source: what is seen of the cache, and biases by distance."""

from __future__ import annotations

import numpy as np
import pytest

from ..doors.attention_op import Scoring, attention

CLOSE = 3e-5  # of float32 sums over some hundred values of about 1
TREE = [-1, 0, 0, 1, 2, -1, 3, 5, 4, 8, 1]
LONG = {"n_heads": 3, "n_kv_heads": 1, "head_size": 20, "capacity": 800}
SOURCES = [1, 16, 20, 300]
PAST = 310


def reference(case, qkv, positions, slots, bias=None):
    """Returns the heads in float64; row i sees the KV cache at ``slots[i]``, its own the last."""
    q = case.turn(case.split(qkv)[0], positions)
    keys, values = case.stored()
    out = np.zeros((len(qkv), case.n_heads, case.head_size))
    for i, seen in enumerate(slots):
        behind = np.arange(len(seen))[::-1]
        for head in range(case.n_heads):
            kv_head = head // (case.n_heads // case.n_kv_heads)
            scores = keys[kv_head, seen] @ q[i, head]
            if bias is not None:
                scores += bias[np.minimum(behind, len(bias) - 1), head]
            weights = np.exp(scores - scores.max())
            out[i, head] = weights @ values[kv_head, seen] / weights.sum()
    return out.reshape(len(qkv), -1)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("n_distances", [0, 1, 9, 400])
def test_rows_see_nothing_of_a_source(isa, make_case, path_of, source, n_distances, rng):
    case = make_case(**LONG)
    prefix, tree = case.qkv(rng, PAST), case.qkv(rng, len(TREE)) / 3
    bias = rng.standard_normal((n_distances, case.n_heads)).astype(np.float32)
    bias = bias if n_distances else None
    case.chain(prefix, isa=isa)
    asked = {"scoring": Scoring(scale=1.0), "source": source, "distance_bias": bias, "isa": isa}
    for parents in (TREE, list(range(-1, len(TREE) - 1))):
        out = case.run(tree, parents, PAST, **asked)
        paths = [path_of(parents, i) for i in range(len(parents))]
        positions = np.array([PAST - 1 + len(path) for path in paths])
        slots = [[*range(source, PAST), *(PAST + node for node in path)] for path in paths]
        expected = reference(case, tree, positions, slots, bias)
        np.testing.assert_allclose(out, expected, atol=CLOSE)


@pytest.mark.parametrize("source", [0, *SOURCES])
def test_rows_see_all_of_a_source(isa, make_case, source, rng):
    """And append nothing; without a source there is nothing to see."""
    case = make_case(**LONG)
    case.chain(case.qkv(rng, PAST), isa=isa)
    qkv = case.qkv(rng, 5) / 3
    queries = np.ascontiguousarray(case.split(qkv)[0].reshape(5, -1))
    keys, values = case.keys.copy(), case.values.copy()
    positions = np.arange(PAST, PAST + 5)
    parents = np.array([-1, 0, 0, 2, -1])
    out = attention(
        queries, positions, parents, PAST, case.rope, (case.keys, case.values),
        scoring=Scoring(scale=1.0), shares_kv=True, source=source, sees_source=True, isa=isa,
        kv_format=case.format_index,
    )  # fmt: skip
    np.testing.assert_array_equal(case.keys, keys)
    np.testing.assert_array_equal(case.values, values)
    if source == 0:
        np.testing.assert_array_equal(out, np.zeros_like(out))
        return
    expected = reference(case, qkv, positions, [range(source)] * 5)
    np.testing.assert_allclose(out, expected, atol=CLOSE)


def test_what_does_not_fit_is_refused(make_case, rng):
    case = make_case(**LONG)
    qkv = case.qkv(rng, 3)
    with pytest.raises(ValueError, match="source is 5, expected 0 to past 4"):
        case.run(qkv, [-1, 0, 1], 4, source=5)
    with pytest.raises(ValueError, match="sees_source needs shares_kv"):
        case.run(qkv, [-1, 0, 1], 4, sees_source=True)
    with pytest.raises(ValueError, match="distance_bias"):
        case.run(qkv, [-1, 0, 1], 4, distance_bias=np.zeros((3, 2), np.float32))
