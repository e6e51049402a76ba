"""Drafting by heads that read the target model's hidden states: how those reach them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from edgedec.runtime.drafting.draft_passes import DraftPasses
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt, RoundOutcome
from edgedec.runtime.drafting.drafters.draft.tree_drafting import TreeDrafter, TreeDrafting
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.prefill import HiddenStates


class FeaturePasses(DraftPasses):
    """Passes of a head, which get the hidden states of the text."""

    takes_guesses = False

    @abstractmethod
    def learn(self, place: int, hidden: HiddenStates) -> None:
        """Takes the target's hidden states of tokens of the text from ``place`` on."""

    @abstractmethod
    def can_read(self, text: Sequence[int]) -> bool:
        """Whether the features of all tokens but the last are known, as far as they are needed."""

    def learn_prompt(self, prompt: DraftPrompt, text: Sequence[int]) -> None:
        """Takes those that are known when a request begins, whose prompt is ``text``."""
        if (known := next(iter(prompt.hidden.values()), None)) is not None:
            self.learn(len(text) - len(known), prompt.hidden)


class FeatureDrafting(TreeDrafting):
    """One request's part, which passes the target's hidden states on."""

    passes: FeaturePasses

    def __init__(self, drafter: TreeDrafter, prompt: DraftPrompt) -> None:
        super().__init__(drafter, prompt)
        self._layer = drafter.hidden_layers[0]

    def propose(self, context: DraftContext, budget: Budget) -> Passes[DraftTree]:
        """Returns a tree; empty if the hidden states of the text's last tokens are unknown."""
        if not self.passes.can_read(context.tokens):
            return DraftTree()
        return (yield from super().propose(context, budget))

    def _recent(self, tokens: Sequence[int], is_drafting: bool = False) -> list[int]:
        """Returns all of the text: of which part features are known, the passes know."""
        return self._text.follow(tokens)

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        """Learns the features of what was emitted, and how far probabilities can be believed."""
        if outcome.hidden:
            n_rows = len(outcome.hidden[self._layer])
            # Nodes behind those were proposed and came true, but nobody computed them.
            rows = [0, *(node + 1 for node in outcome.path if node + 1 < n_rows)]
            hidden = {layer: states[rows] for layer, states in outcome.hidden.items()}
            self.passes.learn(len(context.tokens) - 1, hidden)
        super().observe(context, outcome)
