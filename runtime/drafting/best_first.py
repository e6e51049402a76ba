"""Trees grown at their likeliest places, and what became of them: shared by the free drafters."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import Budget

MAX_PROBABILITY = 0.98
"""No draft is believed to be more certain."""

_MAX_RATE = 2.0
_MEMORY = 0.97  # what one draft leaves of the weight of those before it: some thirty count
_PRIOR_WEIGHT = 6.0  # drafts that weigh as much as the belief a class begins with

State = TypeVar("State")


class Option(NamedTuple, Generic[State]):
    """A token that may follow.

    share: how likely it is if the source can be believed, from 0 to 1.
    kind: the class of drafts it belongs to; how far each can be believed is learnt.
    state: whatever the source needs to find what follows.
    """

    token: int
    share: float
    kind: int
    state: State


class AcceptanceRates:
    """Accepted drafts per expected one, by class of drafts; what is long past counts less."""

    def __init__(self, priors: Iterable[float]) -> None:
        self._rates = [float(prior) for prior in priors]
        self._accepted = [prior * _PRIOR_WEIGHT for prior in self._rates]
        self._expected = [_PRIOR_WEIGHT] * len(self._rates)

    def probability(self, share: float, kind: int) -> float:
        """Returns the probability that a draft is accepted."""
        return min(MAX_PROBABILITY, share * self._rates[kind])

    def learn(self, share: float, kind: int, is_accepted: bool) -> None:
        """Takes in a draft that was compared with the token that came."""
        accepted = self._accepted[kind] = _MEMORY * self._accepted[kind] + is_accepted
        expected = self._expected[kind] = _MEMORY * self._expected[kind] + share
        self._rates[kind] = min(_MAX_RATE, accepted / max(expected, 1e-6))


class BestFirst(Generic[State]):
    """Grows trees node by node, always where the next one is likeliest to be accepted.

    The trees are one request's; ``rates``, what became of drafts before, may be shared by several.

    Source: the expansion by value of DySpec (Xiong et al., 2025, section 4), without draws.
    """

    def __init__(self, name: str, rates: AcceptanceRates) -> None:
        self._name = name
        self._rates = rates
        self._tree = DraftTree()
        self._drafts: list[tuple[float, int]] = []  # share and class of each node
        self._grown_after: int | None = None

    def probability(self, share: float, kind: int) -> float:
        """Returns the probability that a draft of this ``share`` and ``kind`` is accepted."""
        return self._rates.probability(share, kind)

    def grow(
        self,
        n_tokens: int,
        options: Sequence[Option[State]],
        follow: Callable[[State, int], Sequence[Option[State]]],
        budget: Budget,
    ) -> DraftTree:
        """Returns a tree within ``budget`` that begins with ``options``.

        Args:
            n_tokens: Length of the text before the tree.
            follow: Gives the options after one, from its state and its depth. Each token once.
        """
        self._forget()
        self._grown_after = n_tokens
        tree, drafts, believed = self._tree, self._drafts, self._rates.probability
        n_nodes, most_depth, least = budget.n_nodes, budget.depth, budget.min_value
        slots: list[tuple[float, int, int, float, Option[State]]] = []
        n_slots, parent, depth, value = 0, ROOT, 0, 1.0
        while len(drafts) < n_nodes:
            if depth < most_depth:
                for option in options:
                    probability = believed(option.share, option.kind)
                    if value * probability >= least:
                        n_slots += 1
                        slot = (-value * probability, n_slots, parent, probability, option)
                        heapq.heappush(slots, slot)
            if not slots:
                break
            negative, _, above, probability, chosen = heapq.heappop(slots)
            parent, value = tree.append(chosen.token, above, probability, self._name), -negative
            drafts.append((chosen.share, chosen.kind))
            depth = tree.nodes[parent].depth
            options = follow(chosen.state, depth) if depth < most_depth else ()
        return tree

    def learn(self, n_tokens: int, emitted: Iterable[int]) -> None:
        """Compares the tree grown after ``n_tokens`` with what came: ``emitted``, and no more.

        Only nodes that follow a right one are compared. All of them count, whether or not the
        target model was asked about them.
        """
        if self._grown_after == n_tokens:
            parent = ROOT
            for token in emitted:
                next_node = ROOT
                for i in self._tree.children(parent):
                    is_accepted = self._tree.nodes[i].token == token
                    self._rates.learn(*self._drafts[i], is_accepted)
                    next_node = i if is_accepted else next_node
                if next_node == ROOT:
                    break
                parent = next_node
        self._forget()

    def _forget(self) -> None:
        self._tree, self._drafts, self._grown_after = DraftTree(), [], None
