"""The contract of planners, which decide what is drafted, and the simplest one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, Drafter, RoundOutcome
from edgedec.runtime.drafting.fusion import fuse
from edgedec.runtime.drafting.guarded import GuardedDrafter, failures


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
        asked = context.speculation
        n_nodes = asked.draft_len or self._budget.n_nodes
        depth = asked.depth or max(self._budget.depth, asked.draft_len or 0)
        budget = dataclasses.replace(
            self._budget, n_nodes=min(n_nodes, room.n_nodes), depth=min(depth, room.depth)
        )
        trees = [drafter.propose(context, budget) for drafter in self._drafters]
        found = [tree for tree in trees if len(tree)]
        return found[0] if len(found) == 1 else fuse(found, budget)

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
