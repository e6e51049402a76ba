"""Toy tables: target and draft models that are written out, and trees drawn from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sampling.sampling import Survivors, draw

Float64 = npt.NDArray[np.float64]
Tables = dict[tuple[int, ...], Float64]
Draw = Callable[[Float64], int]
"""Returns an index drawn from probabilities."""
V = 4


class TableTarget:
    """A target model that is a table: tokens before -> probabilities."""

    def __init__(self, tables: Tables, tree: DraftTree, noise: Noise | None = None) -> None:
        self._tables = tables
        self._tree = tree
        self._noise = noise or Noise(0)

    def distribution(self, node: int) -> Survivors:
        probs = self._tables[tuple(self._tree.nodes[i].token for i in self._tree.path(node))]
        ids = np.flatnonzero(probs)
        return Survivors(ids, np.log(probs[ids]))

    def pick(self, node: int) -> int:
        return draw(self.distribution(node), self._noise, self.position(node))

    def position(self, node: int) -> int:
        return 0 if node == ROOT else self._tree.nodes[node].depth


def probs_of(rng: np.random.Generator, sharpness: float = 1.0, n: int = V) -> Float64:
    return rng.dirichlet(np.full(n, 1 / sharpness))


def tables_of(rows: Callable[[], Float64], n: int = V) -> Tables:
    """Returns tables for no token, one and two before."""
    paths = [(), *((i,) for i in range(n)), *((i, j) for i in range(n) for j in range(n))]
    return {path: rows() for path in paths}


def drawn_tree(draft: Tables, branching: Sequence[int], draw: Draw) -> DraftTree:
    """Returns a tree whose siblings are drawn from the draft tables without replacement."""
    tree, level = DraftTree(), [ROOT]
    for n_children in branching:
        next_level = []
        for parent in level:
            path = tuple(tree.nodes[i].token for i in tree.path(parent))
            probs = draft[path]
            for _ in range(n_children):
                if not probs.sum() > 0:
                    break
                token = draw(probs / probs.sum())
                next_level.append(tree.add(token, parent, float(draft[path][token]), "toy"))
                probs = probs * (np.arange(len(probs)) != token)
        level = next_level
    return tree


def fixed_tree(paths: Sequence[tuple[int, ...]]) -> DraftTree:
    tree = DraftTree()
    for path in paths:
        parent = ROOT
        for token in path:
            parent = tree.add(token, parent, 0.5, "toy")
    return tree
