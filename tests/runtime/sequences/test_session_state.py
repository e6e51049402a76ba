"""Snapshots of sessions: restored ones must go on as those that computed the tokens."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from graph_models import open_graph_model

from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.messages import save_model
from edgedec.kernels import library
from edgedec.models.errors import SessionError
from edgedec.models.families import weight_shapes
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.state import SessionState, cut
from edgedec.runtime.sequences.token_tree import TokenTree

CONTEXT = 64
TEXT = [int(token) for token in np.random.default_rng(1).integers(0, 83, 40)]
TREE = TokenTree((30, 31, 32, 33, 34), (-1, 0, 0, 2, 2))
MakeSession = Callable[..., TokenSequence]


@pytest.fixture(scope="module", params=["portable", "float16", "int8", "k5v4"])
def make_session(
    request: pytest.FixtureRequest, make_source: Any, tmp_path_factory: pytest.TempPathFactory
) -> MakeSession:
    """Returns a maker of sessions over a tiny model, fused ones with a KV cache of each format."""
    source = make_source(head_size=32)
    model = emit_portable(source.config, ())
    if request.param != "portable":
        if not library.has_library():
            pytest.skip("the kernel library is not built")
        shapes = weight_shapes(source.config)
        formats = {name: source.format(name) for name, s in shapes.items() if len(s) == 2}
        model = fuse(model, source.config, formats, kv_format=request.param)
    folder = tmp_path_factory.mktemp(request.param)
    write_weights(model, source, folder)
    save_model(model, folder / "model.onnx")
    shared = open_graph_model(folder / "model.onnx", source.config, 1)
    return lambda context=CONTEXT: TokenSequence(shared, context)


def feed(session: TokenSequence, tokens: list[int]) -> npt.NDArray[np.float32]:
    """Commits ``tokens`` in one pass and returns their logits."""
    logits = session.forward(TokenTree.chain(tokens), range(len(tokens))).logits.copy()
    session.commit(range(len(tokens)))
    return logits


def go_on(session: TokenSequence) -> list[npt.NDArray[np.float32]]:
    """Returns the logits of a tree, a step and a chunk after what ``session`` holds."""
    tree = session.forward(TREE, range(len(TREE))).logits.copy()
    session.commit((0, 2, 4))
    return [tree, feed(session, [9]), feed(session, [8, 7, 6])]


@pytest.mark.parity
@pytest.mark.parametrize("n_tokens", [1, 15, 16, 17, 33, 40])
def test_restored_session_goes_on_bit_for_bit(make_session: MakeSession, n_tokens: int) -> None:
    computed = make_session()
    feed(computed, TEXT)
    state = computed.snapshot(n_tokens)
    computed.truncate(n_tokens)
    expected = go_on(computed)  # the snapshot must not see what the session does later
    restored = make_session()
    feed(restored, TEXT[::-1])  # rows of another text lie below and behind
    restored.restore(state)
    assert list(restored.tokens) == TEXT[:n_tokens] == list(state.tokens)
    for got, wanted in zip(go_on(restored), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parity
@pytest.mark.parametrize("cuts", [(0, 40), (0, 7, 40), (0, 16, 17, 18, 31, 40)], ids=str)
def test_restored_piece_by_piece(make_session: MakeSession, cuts: tuple[int, ...]) -> None:
    computed, restored = make_session(), make_session(context=56)
    feed(computed, TEXT)
    feed(restored, TEXT[:3] + TEXT)
    whole = computed.snapshot()
    assert whole.nbytes == computed.nbytes == 40 * whole.row_nbytes
    for start, stop in pairwise(cuts):
        piece = computed.snapshot(stop, start)
        assert piece.nbytes == (stop - start) * whole.row_nbytes
        restored.restore(piece)
        assert list(restored.tokens) == TEXT[:stop]
    again = restored.snapshot()
    for name, rows in whole.kv_rows.items():
        np.testing.assert_array_equal(again.kv_rows[name], rows)
        assert np.abs(rows.astype(np.float64)).sum() > 0
    for got, wanted in zip(go_on(restored), go_on(computed), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parity
def test_restore_forgets_the_pass_before(make_session: MakeSession) -> None:
    computed, restored = make_session(), make_session()
    feed(computed, TEXT)
    restored.forward(TREE, (0,))
    restored.restore(computed.snapshot())
    with pytest.raises(SessionError, match="not committed yet"):
        restored.commit((0,))
    restored.restore(computed.snapshot(0))
    assert restored.n_tokens == 0


@pytest.mark.robustness
def test_what_does_not_fit_is_refused(make_session: MakeSession) -> None:
    session, small = make_session(), make_session(context=20)
    feed(session, TEXT)
    good = session.snapshot()
    rows = dict(good.kv_rows)
    first = next(iter(rows))
    narrow = rows | {first: rows[first][..., :1]}
    cases = [
        (SessionState(good.tokens, 0, narrow), r"as [fiu]\d rows of \[\d, 2, 1\], the session's"),
        (SessionState(good.tokens, 0, {first: rows[first]}), "as nothing, the session's as f"),
        (SessionState(good.tokens, 0, {**rows, first: rows[first].astype(np.int16)}), "i2 rows"),
        (SessionState(good.tokens, 0, cut(rows, 40, 0, 39)), "has 39 rows of .* expected 40"),
        (SessionState(good.tokens, -1, rows), "has 40 rows of .* expected 41"),
        (SessionState((*good.tokens[:-1], 83), 0, rows), "token ids from 2 to 83"),
        (SessionState((*good.tokens[:-1], -5), 0, rows), "token ids from -5"),
        (SessionState((1, *good.tokens[1:]), 20, cut(rows, 40, 20, 40)), "continues 20 tokens"),
    ]
    for state, message in cases:
        with pytest.raises(SessionError, match=message) as caught:
            session.restore(state)
        assert "\n" not in str(caught.value)
        assert list(session.tokens) == TEXT
    with pytest.raises(SessionError, match="has 40 tokens, the context 20"):
        small.restore(good)
    small.close()
    with pytest.raises(SessionError, match="closed"):
        small.restore(good)


@pytest.mark.parametrize(("n_tokens", "start"), [(5, 6), (41, 0), (3, -1), (-1, 0)])
def test_bad_snapshots(make_session: MakeSession, n_tokens: int, start: int) -> None:
    session = make_session()
    feed(session, TEXT)
    with pytest.raises(SessionError, match=f"tokens {start} to {n_tokens}, expected 0 to 40"):
        session.snapshot(n_tokens, start)
