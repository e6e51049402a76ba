"""The rounds of a team in Python: the sum of its drafters, and of what `auto` does with others."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.runtime.decoding.acceptance_rates import Trust
from edgedec.runtime.decoding.auto_planner import MAX_NODES, best_part, reordered
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.drafting.best_first import MAX_PROBABILITY
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import (
    Budget,
    DraftContext,
    Drafter,
    DraftPrompt,
    RoundOutcome,
)
from edgedec.runtime.drafting.fusion import fuse

_LEAST_VALUE = 0.02
_LOOK_ROUND = 8


class Team:
    """Drafters in the order of their names, and how far each is believed."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = list(drafters)
        self.trust = {drafter.name: Trust() for drafter in drafters}

    def begin(self, prompt: DraftPrompt) -> TeamRounds:
        """Returns the part of a request."""
        return TeamRounds(self, prompt)


class TeamRounds:
    """A team's part in one request."""

    def __init__(self, team: Team, prompt: DraftPrompt) -> None:
        self._trust = team.trust
        self._draftings = {drafter.name: drafter.begin(prompt) for drafter in team.drafters}
        self._n_asked = 0
        self._tree: DraftTree | None = None

    def propose(
        self, context: DraftContext, room: Budget, costs: CostTable
    ) -> tuple[DraftTree, int, float]:
        """Returns what is proposed, how many of the first nodes pay, and the rate if these are."""
        self._n_asked += 1
        is_look = self._n_asked % _LOOK_ROUND == 0
        least = _LEAST_VALUE if is_look else max(_LEAST_VALUE, costs.row_share)
        budget = Budget(MAX_NODES, min(MAX_NODES, room.depth), min_value=least)
        found = []
        for name, drafting in self._draftings.items():
            factor = self._trust[name].factor
            own = budget if is_look else Budget(MAX_NODES, budget.depth, least / factor)
            tree = drafting.propose(context, own)
            if len(tree):
                found.append(tree.scaled(factor, MAX_PROBABILITY))
        tree = found[0] if len(found) == 1 else fuse(found, budget)
        chosen, rate = best_part(tree, costs, 0.0, room.n_nodes)
        self._tree = reordered(tree, chosen)
        return self._tree, len(chosen), rate

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        """Learns from a round."""
        for drafting in self._draftings.values():
            drafting.observe(context, outcome)
        if self._tree is not None:
            self._weigh(self._tree, outcome.emitted)
        self._tree = None

    def end(self, tokens: Sequence[int]) -> None:
        """The output ended."""
        for drafting in self._draftings.values():
            drafting.end(tokens)

    def _weigh(self, tree: DraftTree, emitted: Sequence[int]) -> None:
        path = tree.matching(emitted)
        tested = set()
        for i in (ROOT, *path):
            for child in tree.children(i):
                node = tree.nodes[child]
                trust = self._trust[node.origin]
                trust.observe(node.probability / trust.factor, child in path)
                tested.add(node.origin)
        for name, trust in self._trust.items():
            if name not in tested:
                trust.forget()
