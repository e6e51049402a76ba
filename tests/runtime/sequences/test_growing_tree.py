"""A tree computed level by level gives the bits of the tree computed at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graph_models import open_graph_model

from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.messages import save_model
from edgedec.kernels import library
from edgedec.models.families import weight_shapes
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

CONTEXT = 64
PREFIX = [3, 80, 7, 7, 41, 0, 12, 66, 5, 19, 20, 21, 1, 2, 3]
TREE = TokenTree((30, 31, 32, 33, 34, 35, 36, 37), (-1, 0, 0, 2, 2, 4, 1, 5))
CHAIN = TokenTree.chain(TREE.tokens)

MakeSession = Callable[..., TokenSequence]


@pytest.fixture(scope="module", params=["float16", "int8", "k5v4"])
def make_session(
    request: pytest.FixtureRequest, make_source: Any, tmp_path_factory: pytest.TempPathFactory
) -> MakeSession:
    """Returns a maker of sessions over a tiny model that have committed the prefix."""
    if not library.has_library():
        pytest.skip("the kernel library is not built")
    source = make_source(has_qkv_bias=True)
    shapes = weight_shapes(source.config)
    formats = {name: source.format(name) for name, s in shapes.items() if len(s) == 2}
    portable = emit_portable(source.config, ())
    graph = fuse(portable, source.config, formats, kv_format=request.param)
    folder = tmp_path_factory.mktemp("fused")
    write_weights(graph, source, folder)
    save_model(graph, folder / "model.onnx")

    def make(threads: int = 1) -> TokenSequence:
        model = open_graph_model(folder / "model.onnx", source.config, threads)
        session = TokenSequence(model, CONTEXT)
        session.forward(TokenTree.chain(PREFIX), ())
        session.commit(range(len(PREFIX)))
        return session

    return make


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("sizes", [(1, 7), (1, 2, 2, 2, 1), (5, 3)], ids=str)
@pytest.mark.parametrize("tree", [TREE, CHAIN], ids=["tree", "chain"])
def test_levels_equal_one_pass(
    make_session: MakeSession, tree: TokenTree, sizes: tuple[int, ...], threads: int
) -> None:
    whole = make_session().forward(tree, range(len(tree))).logits
    session, n_known, levels = make_session(threads), 0, []
    for size in sizes:
        n_nodes = n_known + size
        level = TokenTree(tree.tokens[:n_nodes], tree.parents[:n_nodes])
        rows = session.forward(level, range(n_known, n_nodes), n_known=n_known)
        levels.append(rows.logits.copy())
        n_known = n_nodes
    np.testing.assert_array_equal(np.concatenate(levels), whole)


@pytest.mark.parametrize("path", [(), (0,), (0, 2, 4), (0, 2, 4, 5, 7), (0, 1, 6)], ids=str)
def test_commit_after_growing(make_session: MakeSession, path: tuple[int, ...]) -> None:
    """The next token sees the path as if it had been fed as a plain chain."""
    grown, plain = make_session(), make_session()
    grown.forward(TokenTree(TREE.tokens[:3], TREE.parents[:3]), ())
    grown.forward(TREE, (7,), n_known=3)
    grown.commit(path)
    for i in path:
        plain.forward(TokenTree.chain([TREE.tokens[i]]), ())
        plain.commit((0,))
    assert list(grown.tokens) == list(plain.tokens)
    after = TokenTree.chain([50, 51])
    expected = plain.forward(after, (0, 1)).logits
    np.testing.assert_array_equal(grown.forward(after, (0, 1)).logits, expected)
