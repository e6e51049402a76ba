"""Proposes the text that a grammar or schema leaves no choice about, such as the keys of JSON."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt, RoundOutcome
from edgedec.runtime.drafting.drafters import FreeMethod


class GrammarDrafter:
    """The tokens that the tokenizer makes of forced text. The model may cut it up otherwise."""

    name = "grammar"
    hidden_layers = ()

    def begin(self, prompt: DraftPrompt) -> GrammarDrafting:
        """Returns the part of a request, whose context brings the grammar."""
        return GrammarDrafting()

    def close(self) -> None:
        """Holds nothing."""


class GrammarDrafting:
    """One request's part: the grammar follows the output by itself."""

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        tree = DraftTree()
        if context.mask is not None:
            n_most = min(budget.n_nodes, budget.depth)
            tree.add_chain(context.mask.forced()[:n_most], 1.0, GrammarDrafter.name)
        return tree

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        """Nothing to learn."""

    def end(self, tokens: Sequence[int]) -> None:
        """Nothing to forget."""


METHOD = FreeMethod("what a grammar leaves no choice about", lambda parts: GrammarDrafter())
