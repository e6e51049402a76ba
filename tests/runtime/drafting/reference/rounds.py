"""The rounds of a team in Python: its drafters' trees, joined."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import (
    Budget,
    DraftContext,
    Drafter,
    DraftPrompt,
    RoundOutcome,
)
from edgedec.runtime.drafting.fusion import fuse


class Team:
    """Drafters in the order of their names."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = list(drafters)

    def begin(self, prompt: DraftPrompt) -> TeamRounds:
        """Returns the part of a request."""
        return TeamRounds(self, prompt)


class TeamRounds:
    """A team's part in one request."""

    def __init__(self, team: Team, prompt: DraftPrompt) -> None:
        self._draftings = [drafter.begin(prompt) for drafter in team.drafters]

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        """Returns what all propose."""
        trees = [drafting.propose(context, budget) for drafting in self._draftings]
        found = [tree for tree in trees if len(tree)]
        return found[0] if len(found) == 1 else fuse(found, budget)

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        """Learns from a round."""
        for drafting in self._draftings:
            drafting.observe(context, outcome)

    def end(self, tokens: Sequence[int]) -> None:
        """The output ended."""
        for drafting in self._draftings:
            drafting.end(tokens)
