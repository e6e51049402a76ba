"""Token trees, and the ledger that every backend keeps of what is committed."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.models.errors import SessionError
from edgedec.runtime.sessions.session import TokenLedger, TokenTree

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


@pytest.mark.parametrize("path", [(1,), (0, 3), (0, 1, 4), (6, 0), (0, 0), (7,), (-1,)])
def test_paths_must_lead_down_from_the_prefix(path: tuple[int, ...]) -> None:
    ledger = TokenLedger(16)
    ledger.pending = TREE
    with pytest.raises(SessionError, match="no way down"):
        ledger.check_path(path)


@pytest.mark.parametrize("path", [(), (0,), (0, 2, 5), (6,)])
def test_commit_and_truncate(path: tuple[int, ...]) -> None:
    ledger = TokenLedger(16)
    ledger.tokens = [1, 2]
    ledger.pending = TREE
    ledger.accept(ledger.check_path(path), path)
    assert ledger.tokens == [1, 2, *(TREE.tokens[i] for i in path)]
    with pytest.raises(SessionError, match="call forward first"):
        ledger.check_path(path)
    ledger.truncate(1)
    assert ledger.tokens == [1]
    with pytest.raises(SessionError, match="truncate to 2 tokens, expected 0 to 1"):
        ledger.check_truncate(2)


def test_room() -> None:
    ledger = TokenLedger(8)
    ledger.tokens = [1]
    ledger.check_room(TREE)
    ledger.tokens = [1, 2]
    with pytest.raises(SessionError, match="needs 9 positions, the context has 8"):
        ledger.check_room(TREE)
