"""Token trees, and what a sequence keeps of what is committed, whatever its model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.models.errors import SessionError
from edgedec.models.graph import Capabilities
from edgedec.runtime.sequences.token_tree import TokenTree

from ..conftest import ToySession, toy_state

VOCAB = 60

#       0
#     /   \
#    1     2
#    |    / \
#    3   4   5     6 hangs on the prefix, as 0 does
TREE = TokenTree((10, 11, 12, 13, 14, 15, 16), (-1, 0, 0, 1, 2, 2, -1))


def test_depths_and_ancestry() -> None:
    assert TREE.depths == (0, 1, 1, 2, 2, 2, 0)
    assert not TREE.is_chain
    ancestors = [set(np.flatnonzero(row).tolist()) for row in TREE.ancestry()]
    assert ancestors == [{0}, {0, 1}, {0, 2}, {0, 1, 3}, {0, 2, 4}, {0, 2, 5}, {6}]


def test_chain() -> None:
    chain = TokenTree.chain([7, 8, 9])
    assert chain.is_chain
    assert chain.depths == (0, 1, 2)
    assert chain.ancestry().tolist() == np.tri(3, dtype=bool).tolist()


@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ((), (), "at least one token"),
        ((1, 2), (-1,), "2 tokens and 1 parents"),
        ((1, 2), (-1, 1), "parent of token 1 is 1, expected -1 to 0"),
        ((1,), (-2,), "parent of token 0 is -2"),
    ],
)
def test_bad_trees(tokens: tuple[int, ...], parents: tuple[int, ...], message: str) -> None:
    with pytest.raises(SessionError, match=message):
        TokenTree(tokens, parents)


def holding(tokens: list[int], context: int) -> ToySession:
    """Returns a sequence that has committed ``tokens``."""
    session = ToySession(VOCAB, context)
    session.restore(toy_state(tokens, 0))
    return session


@pytest.mark.parametrize("path", [(1,), (0, 3), (0, 1, 4), (6, 0), (0, 0), (7,), (-1,)])
def test_paths_must_lead_down_from_the_prefix(path: tuple[int, ...]) -> None:
    session = ToySession(VOCAB, 16)
    session.forward(TREE, ())
    with pytest.raises(SessionError, match="no way down"):
        session.commit(path)
    assert session.n_tokens == 0


@pytest.mark.parametrize("path", [(), (0,), (0, 2, 5), (6,)])
def test_commit_and_truncate(path: tuple[int, ...]) -> None:
    session = holding([1, 2], 16)
    session.forward(TREE, ())
    session.commit(path)
    assert session.tokens == [1, 2, *(TREE.tokens[i] for i in path)]
    with pytest.raises(SessionError, match="run one first"):
        session.commit(path)
    session.forward(TREE, ())
    session.truncate(1)
    assert session.tokens == [1]
    with pytest.raises(SessionError, match="run one first"):
        session.commit(path)
    with pytest.raises(SessionError, match="truncate to 2 tokens, expected 0 to 1"):
        session.truncate(2)


def test_room() -> None:
    holding([1], 8).forward(TREE, ())
    session = holding([1, 2], 8)
    with pytest.raises(SessionError, match="needs 9 positions, the context has 8"):
        session.forward(TREE, ())
    assert session.n_passes == 0


def test_a_pass_goes_on_from_the_one_before() -> None:
    session = ToySession(VOCAB, 16)
    start = TokenTree(TREE.tokens[:3], TREE.parents[:3])
    with pytest.raises(SessionError, match="first 3 tokens of the pass are not those"):
        session.forward(TREE, (), n_known=3)
    session.forward(start, ())
    with pytest.raises(SessionError, match="first 4 tokens of the pass are not those"):
        session.forward(TREE, (), n_known=4)
    with pytest.raises(SessionError, match="n_known is 3, expected 0 to 2"):
        session.forward(start, (), n_known=3)
    session.forward(TREE, (), n_known=3)
    assert session.n_rows == len(TREE)


def test_a_failed_pass_is_not_pending() -> None:
    session = holding([1], 16)

    def fail() -> None:
        raise SessionError("no memory")

    session.forward(TREE, ())
    session.before_pass = fail
    with pytest.raises(SessionError, match="no memory"):
        session.forward(TREE, ())
    with pytest.raises(SessionError, match="run one first"):
        session.commit((0,))
    session.before_pass = lambda: None
    session.forward(TREE, ())
    session.commit((0,))
    assert session.tokens == [1, TREE.tokens[0]]


@pytest.mark.parametrize("what", ["sequence", "model"])
def test_closed(what: str) -> None:
    session = holding([1], 16)
    session.close() if what == "sequence" else session.model.close()
    assert session.is_closed
    with pytest.raises(SessionError, match="the model is closed: load the bundle again"):
        session.forward(TREE, ())


@pytest.mark.parametrize(
    ("capabilities", "asked", "message"),
    [
        (Capabilities(trees=False), {}, "cannot run a tree of drafts"),
        (Capabilities(trees=True), {"layer_gates": (True,) * 2}, "cannot leave sub-layers out"),
        (
            Capabilities(trees=True, gates=True),
            {"layer_gates": (True,)},
            "got 1 layer gates, expected 2",
        ),
        (Capabilities(trees=True, hidden=(1, 3)), {"hidden_layers": (3, 2)}, r"\[1, 3\], not of 2"),
    ],
)
def test_what_the_graph_cannot_do_is_refused_before_anything_runs(
    capabilities: Capabilities, asked: dict[str, Any], message: str
) -> None:
    session = ToySession(VOCAB, 16)
    session.toy.capabilities = capabilities
    with pytest.raises(SessionError, match=message):
        session.forward(TREE, (), **asked)
    assert session.n_passes == 0
