"""Planned search over tokens: which beginning of a text to complete next, by what others earned.

A completion shows the likeliest tokens at each of its places, so the tree grows along it without
any further pass: a beginning is completed only where it departs from all texts that are known.

Source: planning-guided transformer decoding (Zhang et al., 2023): P-UCB, the likeliest tokens as
actions, and its caches of completions and of their likeliest tokens. The best reward below a place
counts, as one text is all that is wanted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgedec.runtime.search.growing_tree import Node

_MAX_STEPS = 4096
"""Places that are looked at until a beginning is found that is not completed yet."""


@dataclass(frozen=True)
class PlanConfig:
    """How a search goes on.

    n_options: likeliest tokens that are tried at a place. exploration: what the probability of a
    token counts beside the reward of what follows it, c of P-UCB.
    """

    n_options: int = 3
    exploration: float = 4.0


@dataclass(frozen=True)
class Completion:
    """A whole text and what it earned.

    options: the likeliest tokens at each of its places, with their log-probabilities, likeliest
    first. reward: 0 to 1.
    """

    tokens: tuple[int, ...]
    options: tuple[tuple[tuple[int, float], ...], ...]
    reward: float


class Beginning(Node):
    """A beginning of texts. log_prob: of its last token. best: reward of the texts it begins."""

    def __init__(self, token: int, parent: Beginning | None, log_prob: float) -> None:
        super().__init__(token, parent)
        self.log_prob = log_prob
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.n_visits = 0
        self.best = 0.0
        self.children: list[Beginning] = []
        self.completion: Completion | None = None
        self.is_asked = False  # a completion is under way
        self.is_done = False  # all texts below are known


class TokenPlan:
    """The tree of one search.

    ends: tokens that end a text; no text is ended where the model did not end it. most: tokens of a
    text.
    """

    def __init__(self, config: PlanConfig, ends: frozenset[int], most: int) -> None:
        self._config = config
        self._ends = ends
        self._most = most
        self._root = Beginning(-1, None, 0.0)

    def next(self) -> Beginning | None:
        """Returns the beginning to complete next, which counts as visited; None if there is none.

        Beginnings that are under way are not returned again.
        """
        blocked: set[Beginning] = set()
        for _ in range(_MAX_STEPS):
            if (place := self._select(blocked)) is None:
                return None
            if place.completion is not None:
                self._expand(place, place.completion)
                _visit(place, place.completion.reward)
            elif not place.is_asked:
                place.is_asked = True
                _visit(place, 0.0)
                return place
            else:
                blocked.add(place)
        return None

    def learn(self, place: Beginning, completion: Completion) -> None:
        """Takes in how a beginning went on, and what that earned."""
        place.completion, place.is_asked = completion, False
        for node in place.way():
            assert isinstance(node, Beginning)
            node.best = max(node.best, completion.reward)

    def _select(self, blocked: set[Beginning]) -> Beginning | None:
        """Returns the most promising place without children; None if there is none."""
        place = self._root
        while True:
            if place in blocked or place.is_done:
                return None
            if not place.children:
                return place
            open_ones = [c for c in place.children if not c.is_done and c not in blocked]
            if open_ones:
                place = max(open_ones, key=lambda child: self._score(child))
                continue
            # What is under way may lead further; what is not has nothing left below it.
            if all(child.is_done for child in place.children):
                place.is_done = True
            else:
                blocked.add(place)
            place = self._root

    def _score(self, child: Beginning) -> float:
        parent = child.parent
        assert isinstance(parent, Beginning)
        spread = math.sqrt(math.log(parent.n_visits)) / (1 + child.n_visits)
        return child.best + self._config.exploration * math.exp(child.log_prob) * spread

    def _expand(self, place: Beginning, completion: Completion) -> None:
        """Adds what may follow a place of a known text."""
        if place.depth == len(completion.tokens) or place.depth + 1 >= self._most:
            place.is_done = True
            return
        options = completion.options[place.depth][: self._config.n_options]
        place.children = [
            Beginning(token, place, log_prob)
            for token, log_prob in options
            if token not in self._ends
        ]
        place.is_done = not place.children
        for child in place.children:
            if child.token == completion.tokens[place.depth]:
                child.completion, child.best = completion, completion.reward


def _visit(place: Beginning, reward: float) -> None:
    for node in place.way():
        assert isinstance(node, Beginning)
        node.n_visits += 1
        node.best = max(node.best, reward)
