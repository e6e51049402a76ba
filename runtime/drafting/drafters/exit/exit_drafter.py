"""The first layers of the target model draft, and a head that ends it early.

Source: LayerSkip (Elhoushi et al., 2024), Kangaroo (Liu et al., 2024).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt, RoundOutcome
from edgedec.runtime.drafting.drafters.draft.tree_drafting import TreeDrafter
from edgedec.runtime.drafting.drafters.eagle.feature_drafting import FeatureDrafting
from edgedec.runtime.drafting.drafters.exit.exit_choice import MAX_DEPTH, ExitChoice
from edgedec.runtime.drafting.drafters.exit.exit_passes import ExitPasses
from edgedec.runtime.drafting.head_role import HeadRole
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.prefill import HiddenStates
from edgedec.runtime.sequences.rows import Rows


class ExitDrafter(TreeDrafter):
    """Proposes what the target model thinks after its first layers.

    choice: between several exits, learned from all requests; None where there is one.
    """

    def __init__(self, role: HeadRole) -> None:
        super().__init__("exit", role.token_map, role.target_vocab_size)
        self.hidden_layers = role.hidden_layers
        self.choice = None if len(role.hidden_layers) == 1 else ExitChoice(role.exit_costs)
        self._role = role

    def open(self, prompt: DraftPrompt, text: Sequence[int]) -> ExitPasses:
        """Returns passes over the request's own sequence."""
        assert prompt.target is not None
        choice = self.choice
        layer = self.hidden_layers[0] if choice is None else choice.choose(MAX_DEPTH).layer
        passes = ExitPasses(prompt.target, self._role, layer)
        passes.learn_prompt(prompt, text)
        return passes

    def begin(self, prompt: DraftPrompt) -> ExitDrafting:
        """Returns the part of a request."""
        return ExitDrafting(self, prompt)

    def close(self) -> None:
        """Does nothing: the head is its role's."""


class ExitDrafting(FeatureDrafting):
    """One request's part, whose passes are the first half of verification."""

    passes: ExitPasses

    def __init__(self, drafter: ExitDrafter, prompt: DraftPrompt) -> None:
        super().__init__(drafter, prompt)
        self._choice = drafter.choice
        self._seen: tuple[HiddenStates, tuple[int, ...]] | None = None
        self._n_rounds: Counter[int] = Counter()

    def propose(self, context: DraftContext, budget: Budget) -> Passes[DraftTree]:
        """Returns a tree, grown behind the exit that promises most."""
        if self._choice is not None and budget.depth > 0:
            if self._choice.is_due:
                yield from self._ask_all(self._choice)
            self.passes.layer, depth = self._choice.choose(budget.depth)
            budget = replace(budget, depth=depth)
        self._n_rounds[self.passes.layer] += 1
        return (yield from super().propose(context, budget))

    def verify(self, pass_: Pass) -> Passes[Rows]:
        """Returns the rows of ``pass_``; what drafting computed of them is not computed again."""
        return (yield from self.passes.verify(pass_))

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        """Learns how far probabilities can be believed; keeps what other exits may be asked of."""
        super().observe(context, outcome)
        if self._choice is not None and outcome.ms is not None:
            self._choice.count_round(outcome.ms)
            if outcome.hidden:
                latest = self.passes.latest
                self._seen = latest, outcome.emitted[: len(latest[self.passes.layer])]

    def explain(self) -> list[str]:
        """Returns which exits drafted, and how often each would have been right."""
        lines = []
        for layer, n in sorted(self._n_rounds.items()):
            choice = self._choice
            rate = "" if choice is None else f", right of late {choice.rate(layer):.0%}"
            lines.append(f"exit: behind layer {layer} in {n} rounds{rate}")
        return lines

    def _ask_all(self, choice: ExitChoice) -> Passes[None]:
        """Learns what every exit would have guessed of the tokens seen last."""
        if self._seen is None:
            return
        (hidden, emitted), self._seen = self._seen, None
        rows = yield from self.passes.guesses(hidden)
        by_layer = self._map.names[rows.stats.argmax].reshape(len(hidden), len(emitted))
        for layer, tokens in zip(hidden, by_layer, strict=True):
            choice.learn(layer, int((tokens == emitted).sum()), len(emitted))
        choice.count_look(rows.ms)
