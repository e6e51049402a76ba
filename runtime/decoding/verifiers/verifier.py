"""The contract of verifiers: which drafted tokens are kept, and the token after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sampling.sampling import Survivors


class TargetChoices(Protocol):
    """What the target model says after each node of a tree, ROOT included."""

    def pick(self, node: int) -> int:
        """Returns the token plain decoding would emit after ``node``."""

    def distribution(self, node: int) -> Survivors:
        """Returns the distribution plain decoding would draw from after ``node``."""

    def position(self, node: int) -> int:
        """Returns the position in the text of the token after ``node``."""


class Chance(Protocol):
    """Where verifiers get their random decisions; tests write them out instead."""

    def accepts(self, position: int, i_sibling: int, probability: float) -> bool:
        """Decides on one sibling for ``position``; true with ``probability``."""

    def draws(self, position: int, probs: npt.NDArray[np.float64]) -> int:
        """Returns an index drawn from ``probs``, which sum to 1."""


class NoiseChance:
    """Decisions that depend on the seed, the position and the sibling only."""

    def __init__(self, noise: Noise) -> None:
        self._noise = noise

    def accepts(self, position: int, i_sibling: int, probability: float) -> bool:
        return self._noise.uniform(position, 1 + i_sibling) < probability

    def draws(self, position: int, probs: npt.NDArray[np.float64]) -> int:
        reached = np.cumsum(probs)
        drawn = self._noise.uniform(position, 0) * reached[-1]
        return int(np.searchsorted(reached, drawn, side="right"))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification made of a tree.

    path: accepted nodes, root first.
    next_token: the correction token, or the bonus token when the path ends at a leaf.
    evaluated: the nodes it decided on, those of the path among them.
    """

    path: tuple[int, ...]
    next_token: int
    is_bonus: bool
    evaluated: frozenset[int]


class Verifier(Protocol):
    """A rule of acceptance."""

    @property
    def name(self) -> str:
        """What options and reports call it."""

    @property
    def is_lossless(self) -> bool:
        """Output has the target model's own distribution."""

    @property
    def is_exact(self) -> bool:
        """Output is that of plain decoding with the same seed, token for token."""

    def verify(self, tree: DraftTree, target: TargetChoices, chance: Chance) -> Verdict:
        """Returns which nodes of ``tree`` are kept and the token after them."""


@dataclass(frozen=True, slots=True)
class SiblingVerdict:
    """What became of the siblings after one node.

    token: the next token, be it a sibling's or not.
    accepted: index of the sibling that was accepted.
    n_tried: how many siblings were decided on.
    """

    token: int
    accepted: int | None
    n_tried: int


Choose = Callable[[int, Sequence[int]], SiblingVerdict]
"""Called with a node and the tokens of its children, in the order to be tried."""


def walk(tree: DraftTree, choose: Choose) -> Verdict:
    """Returns the way down that ``choose`` decides, node by node."""
    node, evaluated = ROOT, set[int]()
    while True:
        children = tree.children(node)
        choice = choose(node, [tree.nodes[child].token for child in children])
        evaluated.update(children[: choice.n_tried])
        if choice.accepted is None:
            path = tuple(tree.path(node))
            return Verdict(path, choice.token, not children, frozenset(evaluated.union(path)))
        node = children[choice.accepted]
