"""A head that was trained on the target model's hidden states drafts.

Its row t reads token t beside the features of token t - 1: the target's hidden states of the text,
which come with prompt and rounds, and its own outputs of drafted tokens. So rows of drafts are
never kept: when they came true, the head reads those tokens again, with their own features.

Sources: EAGLE (Li et al., 2024), trees by confidence as EAGLE-2, features as EAGLE-3.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from edgedec.models.draft_heads import OUTPUT, head_features, own_features
from edgedec.runtime.drafting.draft_passes import PREFIX
from edgedec.runtime.drafting.drafter import DraftPrompt
from edgedec.runtime.drafting.drafters.draft.tree_drafting import TreeDrafter
from edgedec.runtime.drafting.drafters.eagle.feature_drafting import FeatureDrafting, FeaturePasses
from edgedec.runtime.drafting.drafters.eagle.features import TextFeatures
from edgedec.runtime.drafting.head_role import HeadRole
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.prefill import PREFILL_CHUNK, HiddenStates
from edgedec.runtime.sequences.rows import Float32, Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.common_prefix import common_prefix

MAX_READ = 256
"""Most tokens of a prompt that the head reads: its end. More costs time before the first draft."""


class HeadText:
    """What a sequence of the head has read, and what it may read next.

    start: place in the text of the sequence's first token, before which it read nothing.
    """

    def __init__(self, width: int) -> None:
        self.start = 0
        self.features = TextFeatures(width)

    def learn(self, place: int, rows: Float32, n_read: int) -> None:
        """Takes the features of tokens from ``place`` on. n_read: tokens in the head's KV cache.

        Where there are more to read than there should be, the earliest are forgotten.
        """
        known = self.features
        known.put(place, rows)
        if known.stop - max(known.first, self.start + n_read) > MAX_READ:
            known.drop_before(known.stop - MAX_READ)


class EaglePasses(FeaturePasses):
    """Grows a tree behind what the head has read of the text; none of its rows are kept."""

    def __init__(self, role: HeadRole, sequence: TokenSequence, text: HeadText) -> None:
        super().__init__(sequence, role.pool.give_back)
        self._role = role
        self._text = text
        self._outputs: dict[int, Float32] = {}  # of the head, by row of the tree

    def learn(self, place: int, hidden: HiddenStates) -> None:
        """Takes the target's hidden states of tokens of the text from ``place`` on."""
        role = self._role
        recent = {i: hidden[i][-MAX_READ:] for i in role.hidden_layers}
        epsilon = None if role.has_raw_features else role.epsilon
        rows = head_features(recent, role.hidden_layers, epsilon)
        first = place + len(hidden[role.hidden_layers[0]]) - len(rows)
        self._text.learn(first, rows, self.sequence.n_tokens)

    def n_missing(self, text: Sequence[int]) -> int:
        """Returns how many tokens of ``text`` are to be read."""
        n_common = common_prefix(self.sequence.tokens, text[self._text.start :])
        if self._is_gap(n_common):
            return len(text) - self._text.features.first
        return len(text) - self._text.start - n_common

    def align(self, text: Sequence[int]) -> int:
        """Forgets the tree, and what was read that is not in ``text``."""
        self._tokens, self._parents, self._outputs = [], [], {}
        n_common = common_prefix(self.sequence.tokens, text[self._text.start :])
        if n_common < self.sequence.n_tokens:
            self.sequence.rewind(n_common)
        if not self.sequence.n_tokens:
            self._text.start = 0
        return PREFIX

    def can_read(self, text: Sequence[int]) -> bool:
        """Whether the features of all tokens but the last are known, as far as they are needed."""
        return len(text) > 1 and self._text.features.stop >= len(text) - 1

    def feed(self, text: Sequence[int], with_logits: bool) -> Passes[Rows]:
        """Reads the rest of ``text``, which it can; returns the row after its end."""
        known, sequence = self._text.features, self.sequence
        sequence.rewind(min(sequence.n_tokens, len(text) - self._text.start - 1))
        if self._is_gap(sequence.n_tokens):
            sequence.truncate(0)
            self._text.start = known.first + self._role.needs_features
        start = self._text.start
        while start + sequence.n_tokens < len(text):
            first = start + sequence.n_tokens
            stop = min(first + PREFILL_CHUNK, len(text))
            rows = yield from self._read(text, first, stop, with_logits and stop == len(text))
        known.drop_before(len(text) - 2)
        return rows

    def end(self, text: Sequence[int]) -> None:
        """Keeps what was read of ``text``, and gives the sequence back."""
        self._text.features.end(text)
        super().end(text)

    def _is_gap(self, n_read: int) -> bool:
        """Whether features are lacking between the first ``n_read`` tokens and those known."""
        n_needed = n_read - 1 if self._role.needs_features else max(0, n_read - 1)
        return self._text.features.first > self._text.start + n_needed

    def _read(self, text: Sequence[int], first: int, stop: int, with_logits: bool) -> Passes[Rows]:
        """Commits tokens ``first`` to ``stop`` of ``text``."""
        known, chunk = self._text.features, TokenTree.chain(text[first:stop])
        is_start = first == self._text.start and not self._role.needs_features
        features = known.rows(first if is_start else first - 1, stop - 1)
        if is_start:  # whatever is before, it is not known
            features = np.concatenate([np.zeros((1, features.shape[1]), np.float32), features])
        logit_rows = (len(chunk) - 1,) if stop == len(text) else ()
        rows = yield Pass(
            self.sequence, chunk, logit_rows, (OUTPUT,), with_logits=with_logits, features=features
        )
        self.sequence.commit(range(len(chunk)))
        self._outputs = {PREFIX: rows.hidden[OUTPUT][-1].copy()}
        self.cost.n_fed += len(chunk)
        self.cost.feed_ms += rows.ms
        return rows

    def _extend(
        self, tokens: Sequence[int], parents: Sequence[int], with_logits: bool
    ) -> Passes[Rows]:
        n_known = len(self._tokens)
        tree = TokenTree((*self._tokens, *tokens), (*self._parents, *parents))
        outputs = np.stack([self._outputs[parent] for parent in parents])
        features = own_features(outputs, len(self._role.hidden_layers))
        self._tokens, self._parents = [], []  # a failed pass leaves no tree
        rows = yield Pass(
            self.sequence,
            tree,
            range(n_known, len(tree)),
            (OUTPUT,),
            n_known,
            with_logits,
            features=features,
        )
        self._outputs |= enumerate(rows.hidden[OUTPUT].copy(), start=n_known)
        self._tokens, self._parents = list(tree.tokens), list(tree.parents)
        return rows


class EagleDrafter(TreeDrafter):
    """Proposes what a trained head finds likely. name: of the method."""

    def __init__(self, role: HeadRole, name: str = "eagle") -> None:
        super().__init__(name, role.token_map, role.target_vocab_size)
        self.hidden_layers = role.hidden_layers
        self._role = role
        # What its sequence has read outlives a request, for the next may go on from there.
        self._texts: WeakKeyDictionary[TokenSequence, HeadText] = WeakKeyDictionary()

    def open(self, prompt: DraftPrompt, text: Sequence[int]) -> FeaturePasses:
        """Returns passes over a sequence of the head."""
        sequence = self._role.pool.take(text, prompt.group)
        n_features = self._role.pool.model.capabilities.features
        known = self._texts.setdefault(sequence, HeadText(n_features))
        known.features.follow(text)
        passes = self._passes(sequence, known)
        passes.learn_prompt(prompt, text)
        return passes

    def begin(self, prompt: DraftPrompt) -> FeatureDrafting:
        """Returns the part of a request."""
        return FeatureDrafting(self, prompt)

    def close(self) -> None:
        """Does nothing: the head is its role's."""

    def _passes(self, sequence: TokenSequence, text: HeadText) -> FeaturePasses:
        return EaglePasses(self._role, sequence, text)
