"""The first layers of the target model draft, and a head that ends it early.

Source: LayerSkip (Elhoushi et al., 2024), Kangaroo (Liu et al., 2024).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt, RoundOutcome
from edgedec.runtime.drafting.drafters.draft.tree_drafting import TreeDrafter, TreeDrafting
from edgedec.runtime.drafting.drafters.exit.exit_choice import MAX_DEPTH, ExitChoice
from edgedec.runtime.drafting.drafters.exit.exit_heads import BareHead
from edgedec.runtime.drafting.drafters.exit.exit_passes import ExitPasses
from edgedec.runtime.drafting.head_role import HeadRole
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.rows import Float32, Rows


class ExitDrafter(TreeDrafter):
    """Proposes what the target model thinks after its first layers.

    choice: between several exits, learned from all requests; None where there is one.
    """

    def __init__(self, role: HeadRole) -> None:
        super().__init__("exit", role.token_map, role.target_vocab_size)
        is_one = len(role.hidden_layers) == 1
        self.hidden_layers = role.hidden_layers if role.is_adapter or not is_one else ()
        self.choice = None if is_one else ExitChoice(role.costs)
        self.role = role

    def open(self, prompt: DraftPrompt, text: Sequence[int]) -> ExitPasses:
        """Returns passes over the request's own sequence."""
        assert prompt.target is not None
        choice = self.choice
        layer = self.role.hidden_layers[0] if choice is None else choice.choose(MAX_DEPTH).layer
        passes = ExitPasses(prompt.target, self.role, layer)
        if (known := prompt.hidden.get(passes.layer)) is not None:
            passes.head.learn(len(text) - len(known), known)
        return passes

    def begin(self, prompt: DraftPrompt) -> ExitDrafting:
        """Returns the part of a request."""
        return ExitDrafting(self, prompt)

    def close(self) -> None:
        """Does nothing: the head is its role's."""


class ExitDrafting(TreeDrafting):
    """One request's part, whose passes are the first half of verification."""

    _drafter: ExitDrafter
    passes: ExitPasses

    def __init__(self, drafter: ExitDrafter, prompt: DraftPrompt) -> None:
        super().__init__(drafter, prompt)
        self._seen: tuple[dict[int, Float32], tuple[int, ...]] | None = None
        self._n_rounds: Counter[int] = Counter()

    def propose(self, context: DraftContext, budget: Budget) -> Passes[DraftTree]:
        """Returns a tree, grown behind the exit that promises most."""
        choice = self._drafter.choice
        if choice is not None and budget.depth > 0:
            if choice.is_due:
                yield from self._ask_all(choice)
            chosen = choice.choose(budget.depth)
            self.passes.layer = chosen.layer
            budget = replace(budget, depth=chosen.depth)
        self._n_rounds[self.passes.layer] += 1
        return (yield from super().propose(context, budget))

    def verify(
        self, pass_: Pass, context: DraftContext, tree: DraftTree, n_left: int
    ) -> Passes[Rows]:
        """Returns the rows of ``pass_``; what drafting computed of them is not computed again."""
        return (yield from self.passes.verify(pass_))

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        """Learns how far probabilities can be believed; keeps what other exits may be asked of."""
        if outcome.hidden:
            n_rows = len(outcome.hidden[self._drafter.hidden_layers[0]])
            # Nodes behind those were proposed and came true, but nobody computed them.
            rows = [0, *(node + 1 for node in outcome.path if node + 1 < n_rows)]
            hidden = {layer: states[rows] for layer, states in outcome.hidden.items()}
            if self._drafter.choice is not None:
                self._seen = hidden, outcome.emitted[: len(rows)]
            self.passes.head.learn(len(context.tokens) - 1, hidden[self.passes.layer])
        if self._drafter.choice is not None and outcome.ms is not None:
            self._drafter.choice.count_round(outcome.ms)
        super().observe(context, outcome)

    def explain(self) -> list[str]:
        """Returns which exits drafted, and how often each would have been right."""
        choice, lines = self._drafter.choice, []
        for layer, n in sorted(self._n_rounds.items()):
            rate = "" if choice is None else f", right of late {choice.rate(layer):.0%}"
            lines.append(f"exit: behind layer {layer} in {n} rounds{rate}")
        return lines

    def _ask_all(self, choice: ExitChoice) -> Passes[None]:
        """Learns what every exit would have guessed of the tokens seen last."""
        if self._seen is None:
            return
        (hidden, emitted), self._seen = self._seen, None
        head = self.passes.head
        assert isinstance(head, BareHead)  # an adapter has one exit
        rows = yield from head.rows(np.concatenate(list(hidden.values())))
        by_layer = self._map.names[rows.stats.argmax].reshape(len(hidden), len(emitted))
        for layer, tokens in zip(hidden, by_layer, strict=True):
            choice.learn(layer, int((tokens == emitted).sum()), len(emitted))
        choice.count_look(rows.ms)
