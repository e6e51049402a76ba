"""A draft model that stops where a probe on its hidden states expects a rejection.

The chance that a level is accepted is the probe's in place of the token's probability; levels are
drafted while the product of the chances is above a threshold, as without a probe. Sampled texts are
drafted as without one.

Source: SpecDec++ (Huang et al., 2024), whose head predicts acceptance from the draft model's hidden
state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgedec.runtime.drafting.draft_passes import DraftPasses
from edgedec.runtime.drafting.draft_role import DraftRole
from edgedec.runtime.drafting.drafter import DraftContext, DraftPrompt
from edgedec.runtime.drafting.drafters.draft.distribution import Option
from edgedec.runtime.drafting.drafters.draft.draft_model import DraftModelDrafter
from edgedec.runtime.drafting.drafters.draft.tree_drafting import TreeDrafting
from edgedec.runtime.drafting.probe import Probe
from edgedec.runtime.sequences.rows import Rows


class ProbedDrafter(DraftModelDrafter):
    """Proposes what a smaller model thinks."""

    name = "probed"

    def __init__(self, role: DraftRole, probe: Probe) -> None:
        super().__init__(role)
        self.probe = probe

    def open(self, prompt: DraftPrompt, text: Sequence[int]) -> DraftPasses:
        """Returns passes that give hidden states; none are predicted."""
        passes = DraftPasses(self.role.take(text, prompt.group), self.role.pool.give_back)
        passes.hidden_layers = (self.probe.layer,)
        return passes

    def begin(self, prompt: DraftPrompt) -> ProbedDrafting:
        """Returns the part of a request."""
        return ProbedDrafting(self, prompt)


class ProbedDrafting(TreeDrafting):
    """One request's part."""

    def __init__(self, drafter: ProbedDrafter, prompt: DraftPrompt) -> None:
        self._probe = drafter.probe
        super().__init__(drafter, prompt)

    def _options(self, rows: Rows, index: int, context: DraftContext, depth: int) -> list[Option]:
        options = super()._options(rows, index, context, depth)
        if options and context.sampling.is_greedy:
            chance = self._probe.chance(rows, index)
            options[0] = replace(options[0], probability=chance)
        return options
