"""Many continuations of one text in a token tree that grows: their common tokens are in it once."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

MOST_NODES = 256
"""Nodes that one tree may grow to before it is begun anew with what is still of use."""


class Node:
    """A token after those of its parents. It is itself alone: nodes are equal if they are one."""

    def __init__(self, token: int, parent: Node | None) -> None:
        self.token = token
        self.parent = parent

    def way(self) -> list[Node]:
        """Returns the nodes down to this one, the root first."""
        found: list[Node] = []
        node: Node | None = self
        while node is not None:
            found.append(node)
            node = node.parent
        return found[::-1]

    @property
    def tokens(self) -> list[int]:
        """The tokens down to this one, without the root's."""
        return [node.token for node in self.way()[1:]]


class GrowingTree:
    """The nodes of a sequence's pending pass. most: that it grows to, but for what a pass needs."""

    def __init__(self, sequence: TokenSequence, most: int) -> None:
        self._sequence = sequence
        self._most = most
        self._begin()

    def _begin(self) -> None:
        self._rows: dict[Node, int] = {}
        self._tokens: list[int] = []
        self._parents: list[int] = []

    def grown(self, chosen: Sequence[Node]) -> Pass:
        """Returns the pass that computes ``chosen`` and nothing that the tree has already.

        chosen: parents before children, none of which the tree has.
        """
        n_known = len(self._tokens)
        if n_known + len(chosen) > self._most:
            n_known = 0
            self._begin()
        for node in chosen:
            for one in node.way():
                if one not in self._rows:
                    self._add(one)
        asked = [self._rows[node] for node in chosen]
        tree = TokenTree(tuple(self._tokens), tuple(self._parents))
        return Pass(self._sequence, tree, asked, n_known=n_known)

    def _add(self, node: Node) -> None:
        self._rows[node] = len(self._tokens)
        self._tokens.append(node.token)
        self._parents.append(-1 if node.parent is None else self._rows[node.parent])
