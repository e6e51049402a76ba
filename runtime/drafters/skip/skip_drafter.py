"""The target model drafts for itself, some of its sub-layers left out.

Such a pass leaves rows in the KV cache that are not the whole model's, so none of them is kept: it
grows a tree behind the anchor as a draft model does, and verification computes all of it again.

Source: draft & verify (Zhang et al., 2023), SWIFT (Xia et al., 2024).
"""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.runtime.drafters.draft.tree_drafting import TreeDrafter
from edgedec.runtime.drafting.draft_passes import PREFIX, DraftPasses
from edgedec.runtime.drafting.drafter import DraftPrompt
from edgedec.runtime.drafting.skip_set import SkipSet
from edgedec.runtime.sessions.passes import Passes
from edgedec.runtime.sessions.rows import Rows
from edgedec.runtime.sessions.sequence import TokenSequence
from edgedec.runtime.text.token_map import TokenMap


class SkipPasses(DraftPasses):
    """Grows a tree behind the anchor in the target's own KV cache; nothing of it is ever kept.

    The anchor is the tree's first row: row i of what is drafted is row i + 1 of the pass.
    """

    def __init__(self, target: TokenSequence, skip_set: SkipSet) -> None:
        super().__init__(target)
        self.promise = skip_set.promise
        self.layer_gates = skip_set.layer_gates

    def n_missing(self, text: Sequence[int]) -> int:
        """Returns 1, the anchor: the target model has read all before it."""
        return 1

    def align(self, text: Sequence[int]) -> int:
        """Forgets the tree."""
        self._tokens, self._parents = [], []
        return PREFIX

    def feed(self, text: Sequence[int], with_logits: bool) -> Passes[Rows]:
        """Computes the anchor; returns the row after it."""
        assert self.sequence.n_tokens == len(text) - 1
        rows = yield from self._extend(text[-1:], [PREFIX], with_logits)
        self.cost.n_fed += 1
        self.cost.feed_ms += rows.ms
        return rows

    def has_room(self, n_new: int) -> bool:
        """Whether the KV cache has rows for ``n_new`` more drafted tokens."""
        return super().has_room(n_new + (not self._tokens))

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], with_logits: bool
    ) -> Passes[Rows]:
        """Returns the rows after ``tokens``, which follow the drafted rows ``parents``."""
        return (yield from super().grow(tokens, [parent + 1 for parent in parents], with_logits))

    def end(self, text: Sequence[int]) -> None:
        """Forgets the tree: the sequence is the request's."""
        self.align(text)

    @property
    def n_rows(self) -> int:
        """Drafted rows so far."""
        return len(self._tokens) - 1


class SkipDrafter(TreeDrafter):
    """Proposes what the target model thinks without some of its sub-layers."""

    def __init__(self, skip_set: SkipSet) -> None:
        n_ids = skip_set.vocab_size
        super().__init__("skip", TokenMap.same(n_ids, n_ids), n_ids)
        self._skip_set = skip_set

    def open(self, prompt: DraftPrompt, text: Sequence[int]) -> DraftPasses:
        """Returns passes over the request's own sequence."""
        assert prompt.target is not None
        return SkipPasses(prompt.target, self._skip_set)

    def close(self) -> None:
        """Does nothing: the model is the target."""
