"""Drafted tokens: a tree that hangs on the last emitted token."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from edgedec.models.errors import SessionError
from edgedec.runtime.sequences.token_tree import TokenTree

ROOT = -1
"""Parent of the nodes that follow the last emitted token."""


class DraftNode(NamedTuple):
    """One drafted token.

    parent: index of the node it follows, or ROOT.
    depth: 1 for tokens that follow the last emitted one.
    probability: the drafter's estimate that the target model chooses this token, given that it
        chose all tokens before.
    origin: name of the drafter.
    """

    token: int
    parent: int
    depth: int
    probability: float
    origin: str


@dataclass
class DraftTree:
    """Nodes in an order that puts parents before children; siblings in the order to be tried."""

    nodes: list[DraftNode] = field(default_factory=list)
    _children: dict[int, list[int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.nodes)

    def add(self, token: int, parent: int, probability: float, origin: str) -> int:
        """Returns the index of ``token`` after ``parent``, a new node unless there is one.

        The likelier of two estimates stays, with its origin.
        """
        if not ROOT <= parent < len(self.nodes):
            raise SessionError(f"parent is {parent}, expected -1 to {len(self.nodes) - 1}")
        index = self.child(parent, token)
        if index is not None:
            old = self.nodes[index]
            if probability > old.probability:
                self.nodes[index] = DraftNode(token, parent, old.depth, probability, origin)
            return index
        return self.append(token, parent, probability, origin)

    def append(self, token: int, parent: int, probability: float, origin: str) -> int:
        """Returns the index of ``token`` after ``parent``, which has no such node yet."""
        nodes = self.nodes
        index, depth = len(nodes), 1 if parent == ROOT else nodes[parent].depth + 1
        nodes.append(DraftNode(token, parent, depth, probability, origin))
        self._children.setdefault(parent, []).append(index)
        return index

    def add_chain(self, tokens: Iterable[int], probability: float, origin: str) -> int:
        """Adds ``tokens`` one after the other from the root; returns the last one's index."""
        parent = ROOT
        for token in tokens:
            parent = self.add(token, parent, probability, origin)
        return parent

    def children(self, parent: int) -> list[int]:
        """Returns the nodes that follow ``parent``, in the order to be tried."""
        return self._children.get(parent, [])

    def child(self, parent: int, token: int) -> int | None:
        """Returns the node of ``token`` after ``parent``, if any."""
        for i in self.children(parent):
            if self.nodes[i].token == token:
                return i
        return None

    def matching(self, tokens: Iterable[int]) -> list[int]:
        """Returns the nodes, from the root down, that spell a beginning of ``tokens``."""
        nodes: list[int] = []
        for token in tokens:
            child = self.child(nodes[-1] if nodes else ROOT, token)
            if child is None:
                break
            nodes.append(child)
        return nodes

    def path(self, node: int) -> list[int]:
        """Returns the nodes from the root down to ``node``, itself included."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.nodes[node].parent
        return nodes[::-1]

    def values(self) -> list[float]:
        """Returns the estimated probability that each node is accepted, its ancestors included."""
        values: list[float] = []
        for node in self.nodes:
            above = 1.0 if node.parent == ROOT else values[node.parent]
            values.append(above * min(node.probability, 1.0))  # estimates may round up
        return values

    def scaled(self, factor: float, most: float) -> DraftTree:
        """Returns the tree with its probabilities multiplied, none of them above ``most``."""
        nodes = [
            DraftNode(token, parent, depth, min(factor * probability, most), origin)
            for token, parent, depth, probability, origin in self.nodes
        ]
        children = {parent: list(below) for parent, below in self._children.items()}
        return DraftTree(nodes, children)

    def beginning(self, n_nodes: int) -> DraftTree:
        """Returns the tree of the first ``n_nodes`` alone, see `subtree`."""
        if n_nodes == len(self.nodes):
            return self
        nodes = self.nodes[:n_nodes]
        children: dict[int, list[int]] = {}
        for i, node in enumerate(nodes):
            children.setdefault(node.parent, []).append(i)
        return DraftTree(nodes, children)

    def subtree(self, kept: Iterable[int]) -> DraftTree:
        """Returns the tree of the ``kept`` nodes alone; parents of kept nodes must be kept."""
        tree = DraftTree()
        new_index = {ROOT: ROOT}
        for i in sorted(set(kept)):
            node = self.nodes[i]
            new_index[i] = tree.append(
                node.token, new_index[node.parent], node.probability, node.origin
            )
        return tree

    def likeliest_chain(self) -> DraftTree:
        """Returns the tree without branches: from the root down the likeliest child each time."""
        path: list[int] = []
        node = ROOT
        while children := self.children(node):
            node = max(children, key=lambda i: self.nodes[i].probability)
            path.append(node)
        return self if len(path) == len(self) else self.subtree(path)

    def to_pass(self, anchor: int) -> TokenTree:
        """Returns the pass that verifies the tree: token 0 is ``anchor``, node i is token i + 1."""
        tokens = (anchor, *(node.token for node in self.nodes))
        return TokenTree(tokens, (-1, *(node.parent + 1 for node in self.nodes)))
