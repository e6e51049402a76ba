"""Many continuations of one text in a token tree that grows: their common tokens are in it once."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

MAX_NODES = 256
"""Nodes that one tree may grow to before it is begun anew with what is still of use."""


class Node:
    """A token after those of its parents. It is itself alone: nodes are equal if they are one."""

    def __init__(self, token: int, parent: Node | None) -> None:
        self.token = token
        self.parent = parent

    def way(self) -> list[Node]:
        """Returns the nodes down to this one, the root first."""
        way: list[Node] = []
        node: Node | None = self
        while node is not None:
            way.append(node)
            node = node.parent
        return way[::-1]

    @property
    def tokens(self) -> list[int]:
        """The tokens down to this one, without the root's."""
        return [node.token for node in self.way()[1:]]


class GrowingTree:
    """The nodes of a sequence's pending pass.

    most: that it grows to, but for what a pass needs. is_narrowing: later nodes all come after what
    those of a pass have in common, which may be committed.
    """

    def __init__(self, sequence: TokenSequence, most: int, is_narrowing: bool = False) -> None:
        self._sequence = sequence
        self._most = most
        self._is_narrowing = is_narrowing
        self._n_committed = 0
        self._begin()

    def _begin(self) -> None:
        self._rows: dict[Node | None, int] = {}
        self._tokens: list[int] = []
        self._parents: list[int] = []

    def grown(self, chosen: Sequence[Node]) -> Pass:
        """Returns the pass that computes ``chosen`` and nothing that the tree has already.

        chosen: nodes that the tree does not have yet, parents before children.
        """
        n_known = len(self._tokens)
        if n_known + len(chosen) > self._most:
            if self._is_narrowing:
                self._commit_common(chosen)
            n_known = 0
            self._begin()
        for node in chosen:
            for ancestor in node.way()[self._n_committed :]:
                if ancestor not in self._rows:
                    self._add(ancestor)
        logit_rows = [self._rows[node] for node in chosen]
        tree = TokenTree(tuple(self._tokens), tuple(self._parents))
        return Pass(self._sequence, tree, logit_rows, n_known=n_known)

    def _commit_common(self, chosen: Sequence[Node]) -> None:
        ways = [node.way()[self._n_committed : -1] for node in chosen]
        common = [nodes[0] for nodes in zip(*ways, strict=False) if len(set(nodes)) == 1]
        if common:
            self._sequence.commit([self._rows[node] for node in common])
            self._n_committed += len(common)

    def _add(self, node: Node) -> None:
        self._rows[node] = len(self._tokens)
        self._tokens.append(node.token)
        self._parents.append(self._rows.get(node.parent, -1))
