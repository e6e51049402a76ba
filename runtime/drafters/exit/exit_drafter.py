"""The first layers of the target model draft, and a head that ends it early."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.runtime.drafters.draft.tree_drafting import TreeDrafter, TreeDrafting
from edgedec.runtime.drafters.exit.exit_passes import ExitPasses
from edgedec.runtime.drafting.drafter import DraftPrompt, Promise
from edgedec.runtime.drafting.head_role import HeadRole
from edgedec.runtime.sessions.passes import Pass, Passes
from edgedec.runtime.sessions.rows import Rows


class ExitDrafter(TreeDrafter):
    """Proposes what the target model thinks after its first layers."""

    def __init__(self, role: HeadRole) -> None:
        super().__init__("exit", role.token_map, role.target_vocab_size)
        self.hidden_layers = role.hidden_layers
        self._role = role

    def open(self, prompt: DraftPrompt, text: Sequence[int]) -> ExitPasses:
        """Returns passes over the request's own sequence."""
        assert prompt.target is not None
        n_layers = prompt.target.model.n_layers
        return ExitPasses(prompt.target, self._role, Promise(self.hidden_layers[0] / n_layers, 0.5))

    def begin(self, prompt: DraftPrompt) -> ExitDrafting:
        """Returns the part of a request."""
        return ExitDrafting(self, prompt)

    def close(self) -> None:
        """Does nothing: the head is its role's."""


class ExitDrafting(TreeDrafting):
    """One request's part, whose passes are the first half of verification."""

    _passes: ExitPasses

    def verify(self, wanted: Pass) -> Passes[Rows]:
        """Returns the rows of ``wanted``; what drafting computed of them is not computed again."""
        return (yield from self._passes.verify(wanted))
