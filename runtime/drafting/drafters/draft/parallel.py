"""A draft model that drafts in one pass: mask tokens behind the text, a drafted token for each.

What it says in a place depends on the text and not on what was drafted before: all branches of a
tree have the same options at a depth.

Source: PARD (An et al., 2025), AMD-AGI/PARD ``pard_infer.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from edgedec.runtime.drafting.draft_passes import PREFIX, DraftPasses
from edgedec.runtime.drafting.draft_role import DraftRole
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt
from edgedec.runtime.drafting.drafters.draft.tree_drafting import TreeDrafter, TreeDrafting
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.prefill import PREFILL_CHUNK, caught_up, rewind
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree


class LevelPasses(DraftPasses):
    """Grows a tree from the rows of one pass, one for each of its levels.

    No row of a drafted token is computed, so none is kept.
    """

    takes_guesses = False

    def __init__(
        self, sequence: TokenSequence, give_back: Callable[[TokenSequence], None], n_levels: int = 1
    ) -> None:
        """n_levels: of the next tree; see `DraftPasses`."""
        super().__init__(sequence, give_back)
        self.n_levels = n_levels
        self._levels: Rows | None = None
        self._depths = {PREFIX: 0}  # of the rows of the tree

    def forget_tree(self) -> None:
        """Starts the next tree."""
        self._tokens, self._parents, self._depths = [], [], {PREFIX: 0}

    def has_room(self, n_new: int) -> bool:
        """Returns True: nothing is computed."""
        return True

    def keep(self, levels: Rows, last: int) -> Rows:
        """Takes the rows of all levels, as copies; returns the first, after token ``last``."""
        self._levels = levels.listed(range(self.n_levels))
        return self._level([0], [last], levels.ms)

    def _extend(
        self, tokens: Sequence[int], parents: Sequence[int], with_logits: bool
    ) -> Passes[Rows]:
        for row, parent in enumerate(parents, start=len(self._tokens)):
            self._depths[row] = self._depths[parent] + 1
        first = len(self._tokens)
        self._tokens += tokens
        self._parents += parents
        return self._level([self._depths[first + i] for i in range(len(tokens))], tokens, 0.0)
        yield  # makes it a step without passes

    def _level(self, depths: list[int], before: Sequence[int], ms: float) -> Rows:
        """Returns the rows of these ``depths``, each after a token."""
        assert self._levels is not None
        rows = self._levels.listed(depths)
        rows.ms = ms
        return rows


class MaskedPasses(LevelPasses):
    """Passes over what is new of the text, with mask tokens behind it."""

    def __init__(self, role: DraftRole, sequence: TokenSequence, mask_token: int) -> None:
        super().__init__(sequence, role.pool.give_back)
        self._mask_token = mask_token

    def n_missing(self, text: Sequence[int]) -> int:
        """Returns how many rows the next proposal computes, those of mask tokens included."""
        return super().n_missing(text) + self.n_levels - 1

    def align(self, text: Sequence[int]) -> int:
        """Forgets the tree, and what was read that is not in ``text``."""
        self.forget_tree()
        rewind(self.sequence, text, n_rows=0)
        return PREFIX

    def feed(self, text: Sequence[int], with_logits: bool) -> Passes[Rows]:
        """Reads the rest of ``text``; returns the row after its end."""
        self.cost.n_fed += max(1, super().n_missing(text)) + self.n_levels - 1
        rewind(self.sequence, text)
        if len(text) - self.sequence.n_tokens > PREFILL_CHUNK:
            yield from caught_up(self.sequence, text[:-1])
        new = text[self.sequence.n_tokens :]
        masks = [self._mask_token] * (self.n_levels - 1)
        rows = yield Pass(
            self.sequence,
            TokenTree.chain([*new, *masks]),
            range(len(new) - 1, len(new) + len(masks)),
            with_logits=with_logits,
        )
        self.sequence.commit(range(len(new)))
        self.cost.feed_ms += rows.ms
        return self.keep(rows, text[-1])


class LevelDrafting(TreeDrafting):
    """One request's part, whose trees take one pass however deep they are."""

    passes: LevelPasses

    def _propose_best(
        self, context: DraftContext, budget: Budget, text: Sequence[int]
    ) -> Passes[DraftTree]:
        self.passes.n_levels = self._n_levels(budget, text)
        if self.passes.n_levels < 1:
            return DraftTree()
        free = replace(
            budget, depth=self.passes.n_levels, min_step_value=0.0, n_step_nodes=budget.n_nodes
        )
        return (yield from super()._propose_best(context, free, text))

    def _n_levels(self, budget: Budget, text: Sequence[int]) -> int:
        """Returns how deep a tree may be; the context has room for that many mask tokens."""
        return min(budget.depth, 1 + self.passes.sequence.context - len(text))


class ParallelDrafter(TreeDrafter):
    """Proposes what a draft model says beside mask tokens."""

    def __init__(self, role: DraftRole, mask_token: int) -> None:
        super().__init__("draft", role.token_map, role.target_vocab_size)
        self.role = role
        self._mask_token = mask_token

    def open(self, prompt: DraftPrompt, text: Sequence[int]) -> MaskedPasses:
        """Returns passes over a sequence of the draft model."""
        return MaskedPasses(self.role, self.role.take(text, prompt.group), self._mask_token)

    def begin(self, prompt: DraftPrompt) -> LevelDrafting:
        """Returns the part of a request."""
        return LevelDrafting(self, prompt)

    def close(self) -> None:
        """Does nothing: the draft model is its role's."""
