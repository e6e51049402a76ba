"""How attention weighs what a row sees: scale, soft cap and window, against NumPy float64."""

from __future__ import annotations

import numpy as np
import pytest

from ..doors.attention_op import Scoring

CLOSE = 3e-5  # of float32 sums over some hundred values of about 1, products made larger
TREE = [-1, 0, 0, 1, 2, -1, 3, 5, 4, 8, 1]
LONG = {"n_heads": 3, "n_kv_heads": 1, "head_size": 20, "capacity": 800}
SCORINGS = [
    {"scale": 0.7},
    {"softcap": 1.5},
    {"window": 5},
    {"scale": 0.6, "softcap": 2.0, "window": 9},
]


def reference(case, qkv, positions, slots, scale=0.0, softcap=0.0, window=0, sinks=None):
    """Returns the heads in float64; row i sees the last ``window`` of ``slots[i]``."""
    sinks = np.full(case.n_heads, -np.inf) if sinks is None else sinks.astype(np.float64)
    q = case.turn(case.split(qkv)[0], positions)
    keys, values = case.stored()
    out = np.zeros((len(qkv), case.n_heads, case.head_size))
    for i, seen in enumerate(slots):
        seen = list(seen)[-window:]
        for head in range(case.n_heads):
            kv_head = head // (case.n_heads // case.n_kv_heads)
            scores = keys[kv_head, seen] @ q[i, head] * (scale or case.head_size**-0.5)
            scores = softcap * np.tanh(scores / softcap) if softcap else scores
            top = max(scores.max(), sinks[head])
            weights = np.exp(scores - top)
            total = weights.sum() + np.exp(sinks[head] - top)
            out[i, head] = weights @ values[kv_head, seen] / total
    return out.reshape(len(qkv), -1)


@pytest.mark.parametrize("scoring", SCORINGS, ids=str)
def test_prompt_matches_float64(isa, make_case, scoring, rng):
    case = make_case()
    qkv = case.qkv(rng, 37)
    out = case.chain(qkv, isa=isa, scoring=Scoring(**scoring), n_threads=2)
    slots = [range(i + 1) for i in range(37)]
    np.testing.assert_allclose(
        out, reference(case, qkv, np.arange(37), slots, **scoring), atol=CLOSE
    )


@pytest.mark.parametrize("scoring", SCORINGS, ids=str)
def test_tree_matches_float64(isa, make_case, path_of, scoring, rng):
    case = make_case()
    prefix, tree = case.qkv(rng, 21), case.qkv(rng, len(TREE))
    case.chain(prefix, isa=isa)
    out = case.run(tree, TREE, 21, isa=isa, scoring=Scoring(**scoring))
    paths = [path_of(TREE, i) for i in range(len(TREE))]
    positions = np.array([20 + len(path) for path in paths])
    slots = [[*range(21), *(21 + node for node in path)] for path in paths]
    np.testing.assert_allclose(out, reference(case, tree, positions, slots, **scoring), atol=CLOSE)


@pytest.mark.parametrize("window", [1, 16, 200, 256, 300, 513])
def test_windows_cross_chunks(isa, make_case, same_bits, window, rng):
    """A row sees its window and no more, and the same bits whoever comes with it."""
    case, n, scoring = make_case(**LONG), 600, Scoring(window=window)
    qkv = case.qkv(rng, n)
    out = case.chain(qkv, isa=isa, scoring=scoring, n_threads=2)
    rows = [0, 3, 255, 256, 257, 511, 512, 599]
    expected = reference(
        case, qkv[rows], np.array(rows), [range(i + 1) for i in rows], window=window
    )
    np.testing.assert_allclose(out[rows], expected, atol=CLOSE)
    for row in rows:
        alone = case.copy().chain(qkv[row : row + 1], row, isa=isa, scoring=scoring)
        assert same_bits(alone[0], out[row])


@pytest.fixture
def sinks(rng):
    """Scores of heads: some above all others, some that count for nothing."""
    return lambda n: np.resize([0.3, 12.0, -80.0, 4.0], n).astype(np.float32)


@pytest.mark.parametrize("window", [0, 5])
def test_sinks_match_float64(isa, make_case, path_of, sinks, window, rng):
    """In a prompt and in a tree behind it."""
    case = make_case()
    prefix, tree = case.qkv(rng, 21), case.qkv(rng, len(TREE))
    own, options = sinks(case.n_heads), {"isa": isa, "scoring": Scoring(window=window)}
    out = case.chain(prefix, sinks=own, n_threads=2, **options)
    slots = [range(i + 1) for i in range(21)]
    expected = reference(case, prefix, np.arange(21), slots, window=window, sinks=own)
    np.testing.assert_allclose(out, expected, atol=CLOSE)
    out = case.run(tree, TREE, 21, sinks=own, **options)
    paths = [path_of(TREE, i) for i in range(len(TREE))]
    positions = np.array([20 + len(path) for path in paths])
    slots = [[*range(21), *(21 + node for node in path)] for path in paths]
    expected = reference(case, tree, positions, slots, window=window, sinks=own)
    np.testing.assert_allclose(out, expected, atol=CLOSE)


@pytest.mark.parametrize("window", [0, 300])
def test_sinks_beside_many_chunks(isa, make_case, same_bits, sinks, window, rng):
    """The same bits on every instruction set, and whoever comes with a row."""
    case, n = make_case(**LONG), 600
    own, scoring = sinks(case.n_heads), Scoring(window=window)
    qkv = case.qkv(rng, n)
    scalar = case.copy().chain(qkv, isa="scalar", scoring=scoring, sinks=own)
    out = case.chain(qkv, isa=isa, scoring=scoring, sinks=own, n_threads=2)
    assert same_bits(out, scalar)
    rows = [0, 255, 256, 512, 599]
    slots = [range(i + 1) for i in rows]
    expected = reference(case, qkv[rows], np.array(rows), slots, window=window, sinks=own)
    np.testing.assert_allclose(out[rows], expected, atol=CLOSE)
    for row in rows:
        alone = case.copy().chain(qkv[row : row + 1], row, isa=isa, scoring=scoring, sinks=own)
        assert same_bits(alone[0], out[row])


def test_a_sink_that_counts_for_nothing(isa, make_case, rng):
    case = make_case()
    qkv = case.qkv(rng, 30)
    without = case.copy().chain(qkv, isa=isa)
    lowest = np.full(case.n_heads, -1e30, np.float32)
    np.testing.assert_allclose(case.chain(qkv, isa=isa, sinks=lowest), without, atol=1e-6)


def test_sinks_of_another_size_are_refused(make_case, rng):
    case = make_case()
    with pytest.raises(ValueError, match="sinks: got float32"):
        case.chain(case.qkv(rng, 3), sinks=np.zeros(case.n_heads + 1, np.float32))


@pytest.mark.parametrize("scoring", SCORINGS[1:], ids=str)
def test_int8_rows_do_not_depend_on_their_company(isa, make_int8_case, same_bits, scoring, rng):
    case, n = make_int8_case(), 40
    qkv = case.qkv(rng, n)
    out = case.chain(qkv, isa=isa, scoring=Scoring(**scoring), n_threads=2)
    expected = reference(case, qkv, np.arange(n), [range(i + 1) for i in range(n)], **scoring)
    np.testing.assert_allclose(out, expected, atol=CLOSE)
    for row in (0, 7, 20, 39):
        alone = case.copy().chain(qkv[row : row + 1], row, isa=isa, scoring=Scoring(**scoring))
        assert same_bits(alone[0], out[row])


def test_every_instruction_set_computes_the_same(isa, make_case, same_bits, rng):
    case = make_case()
    qkv, scoring = case.qkv(rng, 50), Scoring(scale=0.4, softcap=3.0, window=11)
    expected = case.copy().chain(qkv, isa="scalar", scoring=scoring)
    assert same_bits(case.chain(qkv, isa=isa, scoring=scoring), expected)
