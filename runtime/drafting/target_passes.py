"""A tree that is drafted in the target model's own KV cache."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.runtime.drafting.draft_passes import PREFIX, DraftPasses
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.rows import Rows


class TargetPasses(DraftPasses):
    """Grows a tree behind the anchor in the request's own sequence; commits nothing.

    The anchor is the tree's first row: row i of what is drafted is row i + 1 of the pass.
    """

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
