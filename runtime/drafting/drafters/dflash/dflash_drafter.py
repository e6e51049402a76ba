"""Layers that fill masks in behind the text draft a block in one pass.

Rows of the text are made of the target's hidden states of the same tokens, and are kept. Behind
them stands a block: the last token, whose hidden states nobody knows yet, and mask tokens.

Source: DFlash (Chen et al., 2026), z-lab/dflash ``model.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgedec.models.draft_heads import N_FLAGS, OUTPUT
from edgedec.models.token_pairs import TokenPairs
from edgedec.runtime.drafting.draft_passes import PREFIX
from edgedec.runtime.drafting.drafter import Budget, DraftPrompt
from edgedec.runtime.drafting.drafters.draft.parallel import LevelDrafting, LevelPasses
from edgedec.runtime.drafting.drafters.eagle.eagle_drafter import MAX_READ, EagleDrafter, HeadText
from edgedec.runtime.drafting.drafters.eagle.feature_drafting import FeatureDrafting, FeaturePasses
from edgedec.runtime.drafting.head_role import HeadRole
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.prefill import HiddenStates
from edgedec.runtime.sequences.row_stats import RowStats
from edgedec.runtime.sequences.rows import Float32, Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.common_prefix import common_prefix


class BlockPasses(LevelPasses, FeaturePasses):
    """Passes over what is new of the text, with a block behind it."""

    def __init__(self, role: HeadRole, sequence: TokenSequence, text: HeadText) -> None:
        super().__init__(sequence, role.pool.give_back)
        self._role = role
        self._text = text
        self._weights: Float32 | None = None  # of the levels' token pairs
        self._n_kept = min(MAX_READ, sequence.context // 2)

    def learn(self, place: int, hidden: HiddenStates) -> None:
        """Takes the target's hidden states of tokens of the text from ``place`` on."""
        layers = self._role.hidden_layers
        parts = [hidden[layer][-MAX_READ:] for layer in layers]
        rows = np.concatenate([*parts, np.zeros((len(parts[0]), N_FLAGS), np.float32)], axis=1)
        first = place + len(hidden[layers[0]]) - len(rows)
        self._text.learn(first, rows, self.sequence.n_tokens)

    def n_missing(self, text: Sequence[int]) -> int:
        """Returns how many rows the next proposal computes, those of the block included."""
        n_common = common_prefix(self.sequence.tokens, text[self._text.start : -1])
        first = self._first_missing(n_common)
        return len(text) - first + self._n_masks

    def align(self, text: Sequence[int]) -> int:
        """Forgets the tree, and what was read that is not in ``text``.

        Where there is no room for a block, all but the end of the text is forgotten.
        """
        self.forget_tree()
        self.sequence.rewind(common_prefix(self.sequence.tokens, text[self._text.start :]))
        if self.room(text) < self._role.block_size - 1:
            self.sequence.truncate(0)
            self._text.features.drop_before(len(text) - 1 - self._n_kept)
        if not self.sequence.n_tokens:
            self._text.start = 0
        return PREFIX

    def fits(self, text: Sequence[int]) -> bool:
        """Returns True: of a longer text the end is read."""
        return True

    def can_read(self, text: Sequence[int]) -> bool:
        """Whether the features of all tokens but the last are known, as far as they are needed."""
        known = self._text.features
        return known.first < len(text) and 1 < len(text) <= known.stop + 1

    def feed(self, text: Sequence[int], with_logits: bool) -> Passes[Rows]:
        """Reads the rest of ``text``, which it can; returns the row of the first mask token."""
        known, sequence, role = self._text.features, self.sequence, self._role
        n_block = 1 + self._n_masks
        sequence.rewind(min(sequence.n_tokens, len(text) - 1 - self._text.start))
        first = self._first_missing(sequence.n_tokens)
        if first != self._text.start + sequence.n_tokens:
            sequence.truncate(0)
            self._text.start = first
        n_new = len(text) - 1 - first
        block = np.zeros((n_block, sequence.model.capabilities.features), np.float32)
        block[:, -1] = block[1:, -2] = 1
        tokens = (*text[first:], *[role.mask_token] * self._n_masks)
        n, n_past = len(tokens), sequence.n_tokens
        gate = role.token_pairs and role.token_pairs.gate
        rows = yield Pass(
            sequence,
            # Of causal layers the parents decide what rows see.
            TokenTree(tokens, tuple(range(-1, n - 1)), tuple(range(n_past, n_past + n))),
            range(n - self.n_levels, n),
            () if gate is None else (OUTPUT,),
            with_logits=with_logits or role.token_pairs is not None,
            features=self._features(first, len(text) - 1, block),
        )
        if role.token_pairs is not None and gate is not None:
            self._weights = role.token_pairs.weights(rows.hidden[OUTPUT][-self.n_levels :])
        sequence.commit(range(n_new))
        known.drop_before(len(text) - 1 - self._n_kept)
        self.cost.n_fed += n
        self.cost.feed_ms += rows.ms
        return self.keep(rows, text[-1])

    def end(self, text: Sequence[int]) -> None:
        """Keeps what was read of ``text``, and gives the sequence back."""
        self._text.features.end(text)
        super().end(text)

    def room(self, text: Sequence[int]) -> int:
        """Returns how many tokens a block behind ``text`` can draft."""
        n_read = len(text) - self._first_missing(self.sequence.n_tokens) + self.sequence.n_tokens
        n_masks = min(self._role.block_size - 1, self.sequence.context - n_read)
        return n_masks + self._role.predicts_next

    @property
    def _n_masks(self) -> int:
        """Mask tokens of the next block."""
        return self.n_levels - self._role.predicts_next

    def _level(self, depths: list[int], before: Sequence[int], ms: float) -> Rows:
        rows, pairs = super()._level(depths, before, ms), self._role.token_pairs
        weights = None if self._weights is None else self._weights[depths]
        return rows if pairs is None else _with_pairs(rows, pairs, before, weights)

    def _first_missing(self, n_read: int) -> int:
        """Returns where reading goes on, in tokens of the text. n_read: tokens in the KV cache.

        If features are missing there, reading starts again at the first known ones.
        """
        return max(self._text.start + n_read, self._text.features.first)

    def _features(self, first: int, stop: int, block: Float32) -> Float32:
        known = self._text.features
        of_text = known.rows(first, stop) if first < stop else block[:0]
        return np.concatenate([of_text, block])


def _with_pairs(
    rows: Rows, pairs: TokenPairs, before: Sequence[int], weights: Float32 | None = None
) -> Rows:
    """Returns ``rows`` with what the tokens before them add, and statistics but the entropy.

    No row is sorted: what is likely is among the logits that changed.
    """
    logits, ids = pairs.added(rows.logits, before, weights)
    old = np.take_along_axis(rows.logits, ids, axis=1)
    new = RowStats.of(np.take_along_axis(logits, ids, axis=1))
    whole = rows.stats.log_sum_exp
    others = np.maximum(1 - np.exp(old - whole[:, None]).sum(axis=1), 1e-9)
    likeliest = np.take_along_axis(ids, np.maximum(new.top_ids, 0), axis=1)
    top_ids = np.where(new.top_ids < 0, -1, likeliest)
    total = np.logaddexp(new.log_sum_exp, whole + np.log(others)).astype(np.float32)
    stats = replace(
        new,
        argmax=top_ids[:, 0].copy(),
        log_sum_exp=new.log_sum_exp if pairs.n_candidates else total,
        top_ids=top_ids,
    )
    return Rows(logits, {}, stats, rows.ms)


class DFlashDrafting(LevelDrafting, FeatureDrafting):
    """One request's part, whose trees are no deeper than a block."""

    passes: BlockPasses

    def _n_levels(self, budget: Budget, text: Sequence[int]) -> int:
        return min(budget.depth, self.passes.room(text))


class DFlashDrafter(EagleDrafter):
    """Proposes what the layers fill in."""

    def __init__(self, role: HeadRole) -> None:
        super().__init__(role, "dflash")

    def begin(self, prompt: DraftPrompt) -> DFlashDrafting:
        """Returns the part of a request."""
        return DFlashDrafting(self, prompt)

    def _passes(self, sequence: TokenSequence, text: HeadText) -> BlockPasses:
        return BlockPasses(self._role, sequence, text)
