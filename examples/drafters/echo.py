"""Proposes what followed the last token when it occurred before: the simplest drafter there is.

The module's name is the method's name; METHOD states the rest. In edgedec itself such a file would
lie in runtime/drafting/drafters, and nothing else would have to change.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt, RoundOutcome
from edgedec.runtime.drafting.drafters import FreeMethod

_PROBABILITY = 0.3  # a guess of how often such a draft is right, by which budgets are spent


class Echo:
    """What requests share: nothing, for this drafter learns from the text at hand only."""

    name = "echo"
    hidden_layers: Sequence[int] = ()

    def begin(self, prompt: DraftPrompt) -> EchoDrafting:
        """Returns the part of a new output's request."""
        return EchoDrafting()

    def close(self) -> None:
        """Releases nothing."""


class EchoDrafting:
    """One request's part: where each token occurred last, in the text but for its last token."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._n_read = 0

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        """Returns a chain of tokens, empty where the last token is new."""
        tokens, tree = context.tokens, DraftTree()
        for place in range(self._n_read, len(tokens) - 1):
            self._places[tokens[place]] = place
        self._n_read = len(tokens) - 1
        place = self._places.get(tokens[-1])
        if place is not None:
            length = min(budget.depth, budget.n_nodes)
            tree.add_chain(tokens[place + 1 : place + 1 + length], _PROBABILITY, Echo.name)
        return tree

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        """Learns nothing from what was accepted; the text itself is read when proposing."""

    def end(self, tokens: Sequence[int]) -> None:
        """Keeps nothing."""


METHOD = FreeMethod("what followed the last token before", lambda parts: Echo())
