"""The contract of planners, which decide what is drafted, and the simplest one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgedec.runtime.decoding.draft_tree import ROOT, DraftTree
from edgedec.runtime.decoding.guarded import GuardedDrafter, failures
from edgedec.runtime.drafters.drafter import Budget, DraftContext, Drafter, RoundOutcome


@dataclass(frozen=True, slots=True)
class RoundTimings:
    """What a round took.

    draft_ms: proposing. verify_ms: the pass of the target model, verification and commit.
    """

    draft_ms: float
    verify_ms: float


class Planner(Protocol):
    """Decides each round which drafters propose how much, and learns from what becomes of it."""

    @property
    def name(self) -> str:
        """What users call the method."""

    @property
    def failures(self) -> Mapping[str, str]:
        """Drafters that were switched off, and why."""

    def begin(self, tokens: Sequence[int]) -> None:
        """A new output starts after the prompt ``tokens``, which has been prefilled."""

    def propose(self, context: DraftContext, room: Budget) -> DraftTree:
        """Returns the tree to verify, at most ``room``; an empty one asks for a plain step."""

    def observe(
        self, context: DraftContext, outcome: RoundOutcome, timings: RoundTimings | None
    ) -> None:
        """Learns from a round; ``context`` is that of before it.

        Also told of the first token, which prefill gave: ``timings`` is None, the tree empty.
        """

    def end(self, tokens: Sequence[int]) -> None:
        """The output ended with exactly ``tokens``, prompt included."""

    def explain(self) -> list[str]:
        """Returns what was decided in this output so far, a line each."""

    def close(self) -> None:
        """Releases the drafters."""


class FixedPlanner:
    """Asks all its drafters every round and fuses their trees within a fixed budget."""

    def __init__(self, drafters: Sequence[Drafter], budget: Budget, name: str = "") -> None:
        self._drafters = [GuardedDrafter(drafter) for drafter in drafters]
        self._budget = budget
        self.name = name or "+".join(drafter.name for drafter in drafters)

    @property
    def failures(self) -> dict[str, str]:
        return failures(self._drafters)

    def begin(self, tokens: Sequence[int]) -> None:
        for drafter in self._drafters:
            drafter.begin(tokens)

    def propose(self, context: DraftContext, room: Budget) -> DraftTree:
        budget = dataclasses.replace(
            self._budget,
            n_nodes=min(self._budget.n_nodes, room.n_nodes),
            depth=min(self._budget.depth, room.depth),
        )
        trees = [drafter.propose(context, budget) for drafter in self._drafters]
        found = [tree for tree in trees if len(tree)]
        return found[0] if len(found) == 1 else best_nodes(fuse(found), budget.n_nodes)

    def observe(
        self, context: DraftContext, outcome: RoundOutcome, timings: RoundTimings | None
    ) -> None:
        for drafter in self._drafters:
            drafter.observe(context, outcome)

    def end(self, tokens: Sequence[int]) -> None:
        for drafter in self._drafters:
            drafter.end(tokens)

    def explain(self) -> list[str]:
        budget = self._budget
        return [
            f"{self.name}: at most {budget.n_nodes} drafted tokens every round, {budget.depth} deep"
        ]

    def close(self) -> None:
        for drafter in self._drafters:
            drafter.close()


def fuse(trees: Sequence[DraftTree]) -> DraftTree:
    """Returns all paths of ``trees`` in one, common beginnings once.

    The result is deterministic whatever the trees were: how its siblings were found does not
    matter to verifiers that ask for no draft distribution.
    """
    fused = DraftTree()
    for tree in trees:
        index_of = {ROOT: ROOT}
        for i, node in enumerate(tree.nodes):
            parent = index_of[node.parent]
            index_of[i] = fused.add(node.token, parent, node.probability, node.origin)
    return fused


def best_nodes(tree: DraftTree, n_nodes: int) -> DraftTree:
    """Returns the ``n_nodes`` nodes likeliest to be accepted of a deterministic tree."""
    if len(tree) <= n_nodes:
        return tree
    values = tree.values()
    # A parent's value is at least its children's, and its index is lower: it is kept with them.
    return tree.subtree(sorted(range(len(tree)), key=lambda i: (-values[i], i))[:n_nodes])
