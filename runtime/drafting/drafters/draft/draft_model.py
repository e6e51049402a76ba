"""A smaller model drafts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from edgedec.runtime.drafting.draft_passes import DraftPasses
from edgedec.runtime.drafting.draft_role import DraftRole
from edgedec.runtime.drafting.drafter import DraftPrompt
from edgedec.runtime.drafting.drafters.draft.tree_drafting import TreeDrafter


class DraftModelDrafter(TreeDrafter):
    """Proposes what a smaller model thinks."""

    name = "draft"

    def __init__(self, role: DraftRole) -> None:
        super().__init__(self.name, role.token_map, role.target_vocab_size)
        self.role = role

    def open(self, prompt: DraftPrompt, text: Sequence[int]) -> DraftPasses:
        """Returns passes over a sequence of the draft model."""
        mapped = self.role.mapped
        if mapped is not None and prompt.target is not None:
            lend = partial(self.role.lent, group=prompt.group)
            return mapped.passes(text, prompt.target, lend)
        return DraftPasses(self.role.take(text, prompt.group), self.role.pool.give_back)

    def close(self) -> None:
        """Does nothing: the draft model is its role's."""
