"""The target model drafts for itself, some of its sub-layers left out.

Such a pass leaves rows in the KV cache that are not the whole model's, so none of them is kept: it
grows a tree behind the anchor as a draft model does, and verification computes all of it again.

Source: draft & verify (Zhang et al., 2023), SWIFT (Xia et al., 2024).
"""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.labs.drafters.skip.refining import SkipRefiner
from edgedec.runtime.drafting.draft_passes import DraftPasses
from edgedec.runtime.drafting.drafter import DraftPrompt
from edgedec.runtime.drafting.drafters.draft.tree_drafting import TreeDrafter, TreeDrafting
from edgedec.runtime.drafting.skip_set import SkipSet
from edgedec.runtime.drafting.target_passes import TargetPasses
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.text.token_map import TokenMap


class SkipPasses(TargetPasses):
    """Grows a tree with some sub-layers left out; nothing of it is ever kept."""

    def __init__(self, target: TokenSequence, skip_set: SkipSet) -> None:
        super().__init__(target)
        self.promise = skip_set.promise
        self.layer_gates = skip_set.layer_gates


class SkipDrafter(TreeDrafter):
    """Proposes what the target model thinks without some of its sub-layers."""

    def __init__(self, skip_set: SkipSet) -> None:
        n_ids = skip_set.vocab_size
        super().__init__("skip", TokenMap.same(n_ids, n_ids), n_ids)
        self.refiner = SkipRefiner(skip_set)

    def begin(self, prompt: DraftPrompt) -> SkipDrafting:
        """Returns the part of a request."""
        return SkipDrafting(self, prompt)

    def open(self, prompt: DraftPrompt, text: Sequence[int]) -> DraftPasses:
        """Returns passes over the request's own sequence."""
        assert prompt.target is not None
        return SkipPasses(prompt.target, self.refiner.skip_set)

    def close(self) -> None:
        """Does nothing: the model is the target."""


class SkipDrafting(TreeDrafting):
    """One request's part, which looks for a better set when the output has ended."""

    def __init__(self, drafter: SkipDrafter, prompt: DraftPrompt) -> None:
        super().__init__(drafter, prompt)
        self._refiner = drafter.refiner

    def use_idle_time(self, tokens: Sequence[int], target: TokenSequence) -> Passes[int]:
        """Looks for a better set; the whole model has computed all there is."""
        yield from self._refiner.refine(tokens, target)
        return 0

    def explain(self) -> list[str]:
        """Returns what idle time found so far."""
        if not self._refiner.n_tried:
            return []
        return [
            f"skip: {self._refiner.n_tried} other sets tried on the text in idle time, "
            f"{self._refiner.n_kept} taken over"
        ]
