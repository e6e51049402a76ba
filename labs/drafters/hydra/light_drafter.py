"""Light heads draft: head k says what comes k tokens behind the last one that is known.

They read the hidden state of the token before the anchor, and where they see tokens, the anchor
and those drafted so far. Nothing of the text before is looked at: there is no KV cache to keep in
step.

Sources: Medusa (Cai et al., 2024), Hydra (Ankner et al., 2024), trees by confidence as EAGLE-2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgedec.models.draft_heads import OUTPUT, light_gates
from edgedec.models.hidden_states import normed
from edgedec.runtime.drafting.draft_cost import Promise
from edgedec.runtime.drafting.draft_passes import PREFIX
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt
from edgedec.runtime.drafting.drafters.draft.tree_drafting import TreeDrafter
from edgedec.runtime.drafting.drafters.eagle.feature_drafting import FeatureDrafting, FeaturePasses
from edgedec.runtime.drafting.drafters.eagle.features import TextFeatures
from edgedec.runtime.drafting.head_role import HeadRole
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.prefill import HiddenStates
from edgedec.runtime.sequences.rows import Float32, Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree


class LightPasses(FeaturePasses):
    """Grows a tree, one head for each of its levels.

    Rows of a tree read no KV cache: each pass is over rows that hang on nothing.
    """

    def __init__(self, role: HeadRole, sequence: TokenSequence) -> None:
        super().__init__(sequence, role.pool.give_back)
        self._role = role
        model = sequence.model
        self.n_heads = model.n_layers
        self._sees_tokens = OUTPUT in model.capabilities.hidden
        self._width = model.capabilities.features
        self._known = TextFeatures(self._width // (self.n_heads if self._sees_tokens else 1))
        self._state = np.zeros((1, 0), np.float32)  # that this round's tree hangs on
        self._seen: dict[int, Float32] = {}  # what those behind a row read, by row
        self._said: dict[int, Rows] = {}  # in this round, by heads that see no tokens
        self._depths = {PREFIX: 0}  # of the rows of the tree
        (cost,) = role.costs.values()
        self.promise = Promise(cost, role.acceptance)

    def learn(self, place: int, hidden: HiddenStates) -> None:
        """Takes the target's hidden states of tokens of the text from ``place`` on."""
        (states,) = (hidden[layer] for layer in self._role.hidden_layers)
        recent = normed(states[-2:], self._role.epsilon)
        self._known.put(place + len(states) - len(recent), recent)
        self._known.drop_before(self._known.stop - 2)

    def n_missing(self, text: Sequence[int]) -> int:
        """Returns 1: the first head reads the anchor."""
        return 1

    def align(self, text: Sequence[int]) -> int:
        """Forgets the tree."""
        self._tokens, self._parents = [], []
        self._seen, self._said, self._depths = {}, {}, {PREFIX: 0}
        return PREFIX

    def can_read(self, text: Sequence[int]) -> bool:
        """Whether the hidden state of the last token but one is known."""
        return self._known.first <= len(text) - 2 < self._known.stop

    def feed(self, text: Sequence[int], with_logits: bool) -> Passes[Rows]:
        """Returns the first head's row, which is about the token after ``text``."""
        self.align(text)
        self._state = self._known.rows(len(text) - 2, len(text) - 1)
        rows = yield from self._run(0, text[-1:], self._state, with_logits)
        if self._sees_tokens:
            self._seen[PREFIX] = np.concatenate([*self._state, *rows.hidden[OUTPUT]])
        self.cost.n_fed += 1
        self.cost.feed_ms += rows.ms
        return rows

    def end(self, text: Sequence[int]) -> None:
        """Forgets the tree, and gives the sequence back."""
        self.align(text)
        self._give_back(self.sequence)

    def _extend(
        self, tokens: Sequence[int], parents: Sequence[int], with_logits: bool
    ) -> Passes[Rows]:
        first = len(self._tokens)
        for row, parent in enumerate(parents, start=first):
            self._depths[row] = self._depths[parent] + 1
        self._tokens += tokens
        self._parents += parents
        depths = [self._depths[first + i] for i in range(len(tokens))]
        parts, order = [], []
        for depth in sorted(set(depths)):
            chosen = [i for i, d in enumerate(depths) if d == depth]
            rows = yield from self._level(depth, [first + i for i in chosen], with_logits)
            parts.append(rows)
            order += chosen
        return Rows.joined(parts).listed(np.argsort(order).tolist())

    def _level(self, head: int, rows: Sequence[int], with_logits: bool) -> Passes[Rows]:
        """Returns copies of what light head ``head`` says behind ``rows`` of the tree."""
        if not self._sees_tokens:  # whatever they are, it says the same
            if head not in self._said:
                level = yield from self._run(head, [0], self._state, with_logits)
                self._said[head] = level.listed([0])
            else:
                self._said[head].ms = 0.0
            return self._said[head].listed([0] * len(rows))
        features = np.stack([self._seen[self._parents[row]] for row in rows])
        level = yield from self._run(
            head, [self._tokens[row] for row in rows], features, with_logits
        )
        for row, before, state in zip(rows, features, level.hidden[OUTPUT], strict=True):
            self._seen[row] = np.concatenate([before, state])
        return level.listed(range(len(rows)))

    def _run(
        self, head: int, tokens: Sequence[int], features: Float32, with_logits: bool
    ) -> Passes[Rows]:
        """Returns the rows of light head ``head``.

        features: as many as it reads, which may be fewer than others do.
        """
        missing = self._width - features.shape[1]
        return (
            yield Pass(
                self.sequence,
                TokenTree(tuple(tokens), (PREFIX,) * len(tokens)),
                range(len(tokens)),
                (OUTPUT,) if self._sees_tokens else (),
                with_logits=with_logits,
                layer_gates=light_gates(self.n_heads, head),
                features=np.pad(features, ((0, 0), (0, missing))),
            )
        )


class LightDrafter(TreeDrafter):
    """Proposes what trained light heads find likely."""

    def __init__(self, name: str, role: HeadRole) -> None:
        super().__init__(name, role.token_map, role.target_vocab_size)
        self.hidden_layers = role.hidden_layers
        self._role = role

    def open(self, prompt: DraftPrompt, text: Sequence[int]) -> LightPasses:
        """Returns passes of the heads."""
        passes = LightPasses(self._role, self._role.pool.take(()))
        passes.learn_prompt(prompt, text)
        return passes

    def begin(self, prompt: DraftPrompt) -> LightDrafting:
        """Returns the part of a request."""
        return LightDrafting(self, prompt)

    def close(self) -> None:
        """Does nothing: the heads are their role's."""


class LightDrafting(FeatureDrafting):
    """One request's part, whose trees are no deeper than there are heads."""

    passes: LightPasses

    def propose(self, context: DraftContext, budget: Budget) -> Passes[DraftTree]:
        """Returns a tree; empty if the hidden state of the last token but one is unknown."""
        depth = min(budget.depth, self.passes.n_heads)
        return (yield from super().propose(context, replace(budget, depth=depth)))
