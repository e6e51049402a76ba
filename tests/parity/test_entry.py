"""Layers computed in two goes, from stored hidden states, give the bits of whole passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from graph_models import open_graph_model

from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.messages import save_model
from edgedec.kernels import library
from edgedec.models.errors import SessionError
from edgedec.models.families import weight_shapes
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

CONTEXT = 64
N_LAYERS = 3
TEXT = [int(t) for t in np.random.default_rng(5).integers(0, 83, 40)]
TREE = TokenTree((30, 31, 32, 33, 34, 35), (-1, 0, 0, 2, 1, 3))
PATH = (0, 2, 3, 5)
WIDTH = 32

MakeSequence = Callable[..., TokenSequence]


@pytest.fixture(scope="module", params=["float16", "int8", "k5v4"])
def make_sequence(
    request: pytest.FixtureRequest, make_source: Any, tmp_path_factory: pytest.TempPathFactory
) -> MakeSequence:
    """Returns a maker of sequences over a tiny model that have committed some tokens."""
    if not library.has_library():
        pytest.skip("the kernel library is not built")
    source = make_source(has_qkv_bias=True)
    shapes = weight_shapes(source.config)
    formats = {name: source.format(name) for name, s in shapes.items() if len(s) == 2}
    portable = emit_portable(source.config, (1, N_LAYERS))
    graph = fuse(portable, source.config, formats, kv_format=request.param)
    folder = tmp_path_factory.mktemp("fused")
    write_weights(graph, source, folder)
    save_model(graph, folder / "model.onnx")

    def make(n_committed: int = 0, threads: int = 1) -> TokenSequence:
        sequence = TokenSequence(
            open_graph_model(folder / "model.onnx", source.config, threads), CONTEXT
        )
        if n_committed:
            sequence.forward(TokenTree.chain(TEXT[:n_committed]), ())
            sequence.commit(range(n_committed))
        return sequence

    return make


def go(sequence: TokenSequence, tokens: Sequence[int], layers: range, **asked: Any) -> Any:
    """Returns the rows of a pass of some layers over a chain."""
    chain = TokenTree.chain(tokens)
    return sequence.run(Pass(sequence, chain, asked.pop("rows", ()), layers=layers, **asked))


def shallow(sequence: TokenSequence, text: Sequence[int], layer: int, size: int) -> Any:
    """Commits the first layers of ``text`` in chunks; returns the hidden states behind them."""
    found = []
    for start in range(0, len(text), size):
        chunk = text[start : start + size]
        rows = go(sequence, chunk, range(layer), hidden_layers=(layer,))
        found.append(rows.hidden[layer].copy())
        sequence.commit(range(len(chunk)))
    return np.concatenate(found)


def deepen(sequence: TokenSequence, hidden: Any, layer: int, size: int) -> Any:
    """Commits the other layers of all partial tokens in chunks; returns the last row's logits."""
    while sequence.partial:
        chunk = sequence.partial[:size]
        entry, hidden = hidden[: len(chunk)], hidden[len(chunk) :]
        rows = go(sequence, chunk, range(layer, N_LAYERS), rows=(len(chunk) - 1,), entry=entry)
        sequence.commit(range(len(chunk)))
    return rows.logits[-1].copy()


def same_rows(one: TokenSequence, other: TokenSequence) -> None:
    assert list(one.tokens) == list(other.tokens)
    expected = other.snapshot().kv_rows
    for name, rows in one.snapshot().kv_rows.items():
        np.testing.assert_array_equal(rows, expected[name], err_msg=name)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("sizes", [(40, 40), (16, 7), (5, 33), (1, 1)], ids=str)
@pytest.mark.parametrize("layer", [1, 2])
@pytest.mark.parametrize("n_before", [0, 3])
def test_two_goes_equal_one(
    make_sequence: MakeSequence, layer: int, sizes: tuple[int, int], n_before: int, threads: int
) -> None:
    whole, split = make_sequence(threads=threads), make_sequence(n_before, threads)
    expected = go(whole, TEXT, range(N_LAYERS), rows=(len(TEXT) - 1,)).logits[0].copy()
    whole.commit(range(len(TEXT)))
    hidden = shallow(split, TEXT[n_before:], layer, sizes[0])
    assert (split.n_tokens, len(split.partial), split.depth) == (n_before, 40 - n_before, layer)
    np.testing.assert_array_equal(deepen(split, hidden, layer, sizes[1]), expected)
    assert (list(split.partial), split.depth) == ([], 0)
    same_rows(split, whole)


def test_hidden_states_are_those_of_whole_passes(make_sequence: MakeSequence) -> None:
    whole = go(make_sequence(), TEXT, range(N_LAYERS), hidden_layers=(1, N_LAYERS)).hidden
    sequence = make_sequence()
    np.testing.assert_array_equal(shallow(sequence, TEXT, 1, 16), whole[1])
    two = shallow(make_sequence(), TEXT, 2, 16)  # no port of its own
    last = go(
        sequence, TEXT, range(1, N_LAYERS), entry=whole[1].copy(), hidden_layers=(N_LAYERS,)
    ).hidden[N_LAYERS]
    np.testing.assert_array_equal(last, whole[N_LAYERS])
    assert np.abs(two - whole[1]).max() > 0.1


@pytest.mark.parametrize("layer", [1, 2])
def test_a_tree_drafted_early_is_verified_from_its_hidden_states(
    make_sequence: MakeSequence, layer: int
) -> None:
    whole, split = make_sequence(9), make_sequence(9)
    expected = whole.forward(TREE, range(len(TREE))).logits.copy()
    whole.commit(PATH)
    first = TokenTree(TREE.tokens[:3], TREE.parents[:3])
    early = range(layer)
    rows = split.run(Pass(split, first, (2,), hidden_layers=(layer,), layers=early))
    found = [rows.hidden[layer].copy()]
    assert rows.logits.shape == (1, 83)  # the head on an exit
    rows = split.run(Pass(split, TREE, (), (layer,), n_known=3, layers=early))
    found.append(rows.hidden[layer].copy())
    late = range(layer, N_LAYERS)
    rows = split.run(Pass(split, TREE, range(len(TREE)), layers=late, entry=np.concatenate(found)))
    np.testing.assert_array_equal(rows.logits, expected)
    split.commit(PATH)
    same_rows(split, whole)


def test_accepted_partial_tokens_stay_and_the_rest_is_forgotten(
    make_sequence: MakeSequence,
) -> None:
    sequence = make_sequence(3)
    hidden = shallow(sequence, TEXT[3:10], 1, 7)
    go(sequence, TEXT[3:10], range(1, N_LAYERS), entry=hidden)
    sequence.commit(range(4))
    assert list(sequence.partial) == TEXT[7:10]
    sequence.truncate(sequence.n_tokens)
    assert list(sequence.partial) == []
    feeding = go(sequence, TEXT[7:], range(N_LAYERS), rows=(32,)).logits.copy()
    whole = make_sequence()
    np.testing.assert_array_equal(feeding, go(whole, TEXT, range(N_LAYERS), rows=(39,)).logits)


def test_what_a_partial_text_does_not_allow(make_sequence: MakeSequence) -> None:
    sequence = make_sequence(3)
    hidden = shallow(sequence, TEXT[3:10], 1, 7)
    with pytest.raises(SessionError, match="of which 1 layers are computed"):
        go(sequence, TEXT[10:12], range(N_LAYERS))
    with pytest.raises(SessionError, match="of which 1 layers are computed"):
        go(sequence, TEXT[10:12], range(2))
    with pytest.raises(SessionError, match="needs its tokens computed up to there"):
        go(sequence, TEXT[4:10], range(1, N_LAYERS), entry=hidden[1:])
    with pytest.raises(SessionError, match="needs its tokens computed up to there"):
        go(sequence, TEXT[3:10], range(2, N_LAYERS), entry=hidden)
    with pytest.raises(SessionError, match="skips 1 partial tokens, of which 0 have predicted"):
        go(sequence, TEXT[4:6], range(1, N_LAYERS), entry=hidden[1:3], n_skipped=1)
    with pytest.raises(SessionError, match=r"hidden states have the shape \(6, 32\)"):
        go(sequence, TEXT[3:10], range(1, N_LAYERS), entry=hidden[1:])
    with pytest.raises(SessionError, match="layer 1 was given no hidden states"):
        go(sequence, TEXT[3:10], range(1, N_LAYERS))
    with pytest.raises(SessionError, match="expected a range in 0 to 3"):
        go(sequence, TEXT[3:10], range(1, 4), entry=hidden)
    shallow(sequence, TEXT[10:12], 1, 2)
    state = sequence.snapshot()
    assert list(state.tokens) == TEXT[:3]
    sequence.restore(state)
    assert list(sequence.partial) == []


def test_rows_known_from_fewer_layers_are_refused(make_sequence: MakeSequence) -> None:
    sequence = make_sequence(3)
    chain = TokenTree.chain(TEXT[3:6])
    sequence.run(Pass(sequence, chain, (), layers=range(1)))
    with pytest.raises(SessionError, match=r"computed in the layers range\(0, 1\)"):
        sequence.run(Pass(sequence, TokenTree.chain(TEXT[3:8]), (), n_known=3))
