"""A draft model that reads excerpts of a long text before its end.

Source: RAPID (Chen et al., 2025), whose drafts come from a model with a retrieved context. The
target model judges them alone here, so that its text stays the same (eta = 0 in the paper).
"""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.labs.drafters.rapid.excerpts import N_CHUNK, excerpts
from edgedec.runtime.drafting.draft_passes import DraftPasses
from edgedec.runtime.drafting.drafter import DraftPrompt
from edgedec.runtime.drafting.drafters.draft.draft_model import DraftModelDrafter
from edgedec.runtime.drafting.drafters.draft.tree_drafting import TreeDrafting


class RapidDrafter(DraftModelDrafter):
    """Proposes what a smaller model thinks that has read excerpts."""

    name = "rapid"

    def open(self, prompt: DraftPrompt, text: Sequence[int]) -> DraftPasses:
        """Returns passes that compute what they read: nothing is predicted for other text."""
        return DraftPasses(self.role.take(text, prompt.group), self.role.pool.give_back)

    def begin(self, prompt: DraftPrompt) -> RapidDrafting:
        """Returns the part of a request."""
        return RapidDrafting(self, prompt)


class RapidDrafting(TreeDrafting):
    """One request's part."""

    n_recent = N_CHUNK

    def _before_end(self, text: Sequence[int], end: Sequence[int]) -> list[int]:
        return excerpts(text, end)
