"""A draft model that reads the target's hidden states, too, drafts in one pass.

Its row t reads token t beside the target's states of token t - 1. Mask tokens behind the text read
those of the last token whose states are known.

Source: PARD 2, AMD-AGI/PARD ``pard2_infer.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.runtime.drafting.draft_passes import PREFIX
from edgedec.runtime.drafting.drafter import DraftPrompt
from edgedec.runtime.drafting.drafters.draft.parallel import LevelDrafting, LevelPasses
from edgedec.runtime.drafting.drafters.eagle.eagle_drafter import MAX_READ, EagleDrafter, HeadText
from edgedec.runtime.drafting.drafters.eagle.feature_drafting import FeatureDrafting, FeaturePasses
from edgedec.runtime.drafting.head_role import HeadRole
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.prefill import HiddenStates
from edgedec.runtime.sequences.rows import Float32, Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.common_prefix import common_prefix


class PardPasses(LevelPasses, FeaturePasses):
    """Passes over what is new of the text, with mask tokens behind it."""

    def __init__(self, role: HeadRole, sequence: TokenSequence, text: HeadText) -> None:
        super().__init__(sequence, role.pool.give_back)
        self._role = role
        self._text = text

    def learn(self, place: int, hidden: HiddenStates) -> None:
        """Takes the target's hidden states of tokens of the text from ``place`` on."""
        layers = self._role.hidden_layers
        rows = np.concatenate([hidden[layer][-MAX_READ:] for layer in layers], axis=1)
        first = place + len(hidden[layers[0]]) - len(rows)
        self._text.learn(first, rows, self.sequence.n_tokens)

    def n_missing(self, text: Sequence[int]) -> int:
        """Returns how many rows the next proposal computes, those of mask tokens included."""
        n_common = common_prefix(self.sequence.tokens, text[self._text.start :])
        first = self._text.start + n_common
        if self._is_gap(first):
            first = self._text.features.first + 1
        return max(1, len(text) - first) + self.n_levels - 1

    def align(self, text: Sequence[int]) -> int:
        """Forgets the tree, and what was read that is not in ``text``."""
        self.forget_tree()
        self.sequence.rewind(common_prefix(self.sequence.tokens, text[self._text.start :]))
        if not self.sequence.n_tokens:
            self._text.start = 0
        return PREFIX

    def can_read(self, text: Sequence[int]) -> bool:
        """Whether the features of all tokens but the last are known, as far as they are needed."""
        known = self._text.features
        return known.first + 1 < len(text) <= known.stop + 1

    def feed(self, text: Sequence[int], with_logits: bool) -> Passes[Rows]:
        """Reads the rest of ``text``, which it can; returns the row after its end."""
        known, sequence = self._text.features, self.sequence
        sequence.rewind(min(sequence.n_tokens, len(text) - self._text.start - 1))
        if self._is_gap(self._text.start + sequence.n_tokens):
            sequence.truncate(0)
            self._text.start = known.first + 1
        first, n_masks = self._text.start + sequence.n_tokens, self.n_levels - 1
        n_new = len(text) - first
        rows = yield Pass(
            sequence,
            TokenTree.chain([*text[first:], *[self._role.mask_token] * n_masks]),
            range(n_new - 1, n_new + n_masks),
            with_logits=with_logits,
            features=self._features(first, len(text), n_masks),
        )
        sequence.commit(range(n_new))
        known.drop_before(len(text) - 2)
        self.cost.n_fed += n_new + n_masks
        self.cost.feed_ms += rows.ms
        return self.keep(rows, text[-1])

    def end(self, text: Sequence[int]) -> None:
        """Keeps what was read of ``text``, and gives the sequence back."""
        self._text.features.end(text)
        super().end(text)

    def _is_gap(self, first: int) -> bool:
        """Whether the features of the token before place ``first`` are lacking."""
        return self._text.features.first > max(0, first - 1)

    def _features(self, first: int, stop: int, n_masks: int) -> Float32:
        """Returns those of the tokens before places ``first`` to ``stop``, the last ones again."""
        known = self._text.features.rows(max(0, first - 1), stop - 1)
        before = np.zeros((int(first == 0), known.shape[1]), np.float32)
        return np.concatenate([before, known, *[known[-1:]] * n_masks])


class PardDrafting(LevelDrafting, FeatureDrafting):
    """One request's part."""

    passes: PardPasses


class PardDrafter(EagleDrafter):
    """Proposes what the draft model says beside mask tokens."""

    def __init__(self, role: HeadRole) -> None:
        super().__init__(role, "pard")

    def begin(self, prompt: DraftPrompt) -> PardDrafting:
        """Returns the part of a request."""
        return PardDrafting(self, prompt)

    def _passes(self, sequence: TokenSequence, text: HeadText) -> PardPasses:
        return PardPasses(self._role, sequence, text)
