"""Passes of a model's first layers, and of a head that ends it there.

What the first layers made of a drafted token is what verification needs of it: their rows of the KV
cache stay where they are, and the other layers go on from the hidden states between. The head is
the model's own, which looks at one token's hidden state, or an adapter, whose KV cache has the text
as far back as hidden states are known.

Source: LayerSkip (Elhoushi et al., 2024), Kangaroo (Liu et al., 2024).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.models.hidden_states import normed
from edgedec.runtime.drafting.draft_passes import PREFIX
from edgedec.runtime.drafting.drafters.eagle.eagle_drafter import HeadText
from edgedec.runtime.drafting.drafters.eagle.feature_drafting import FeaturePasses
from edgedec.runtime.drafting.head_role import HeadRole
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.prefill import HiddenStates
from edgedec.runtime.sequences.rows import Float32, Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.common_prefix import common_prefix


class ExitPasses(FeaturePasses):
    """Grows a tree in the request's own sequence; the other layers verify it from there.

    The anchor is the tree's first row: row i of what is drafted is row i + 1 of the pass.

    layer: layers that run while drafting; may change between proposals.
    """

    def __init__(self, target: TokenSequence, role: HeadRole, layer: int) -> None:
        super().__init__(target)
        self.layer = layer
        self._role = role
        self._head = role.pool.take(())
        self._head.truncate(0)
        self._text = HeadText(role.pool.model.capabilities.features)
        self._hidden: dict[int, list[Float32]] = {}  # of the tree's rows, by layer
        self.latest: HiddenStates = {}

    def learn(self, place: int, hidden: HiddenStates) -> None:
        """Takes the target's hidden states of tokens of the text from ``place`` on.

        `latest` are those then, for all exits; only an adapter reads them again.
        """
        self.latest = hidden
        if self._role.is_adapter:
            rows = normed(hidden[self.layer], self._role.epsilon)
            self._text.learn(place, rows, self._head.n_tokens)

    def can_read(self, text: Sequence[int]) -> bool:
        """Returns True: the first layers compute the hidden states of the last token."""
        return True

    def n_missing(self, text: Sequence[int]) -> int:
        """Returns how many tokens the head would read."""
        return len(text) - self._next(text)

    def align(self, text: Sequence[int]) -> int:
        """Forgets the tree."""
        self._tokens, self._parents, self._hidden = [], [], {}
        return PREFIX

    def feed(self, text: Sequence[int], with_logits: bool) -> Passes[Rows]:
        """Computes the anchor's first layers; returns the head's row after it."""
        assert self.sequence.n_tokens == len(text) - 1
        early = yield from self._compute(TokenTree.chain(text[-1:]))
        place, last, head = self._next(text), len(text) - 1, self._head
        if 0 <= place - self._text.start <= self._n_read(text):
            head.rewind(place - self._text.start)
        else:
            head.truncate(0)
        self._text.start = place - head.n_tokens
        features = self._features()
        if place < last:
            features = np.concatenate([self._text.features.rows(place, last), features])
        chain = TokenTree.chain(text[place:])
        rows = yield Pass(
            head, chain, (len(chain) - 1,), with_logits=with_logits, features=features
        )
        head.commit(range(len(chain)))
        self._text.features.drop_before(last)
        self.cost.n_fed += 1
        self.cost.feed_ms += early.ms + rows.ms
        return rows

    def has_room(self, n_new: int) -> bool:
        """Whether the KV cache has rows for ``n_new`` more drafted tokens."""
        return super().has_room(n_new + (not self._tokens))

    def end(self, text: Sequence[int]) -> None:
        """Forgets the tree, for the sequence is the request's; gives back the head's."""
        self.align(text)
        self._role.pool.give_back(self._head)

    @property
    def n_rows(self) -> int:
        """Drafted rows so far."""
        return len(self._tokens) - 1

    def guesses(self, hidden: HiddenStates) -> Passes[Rows]:
        """Returns the rows of the model's own head behind all of ``hidden``, exit by exit."""
        features = normed(np.concatenate(list(hidden.values())), self._role.epsilon)
        self._head.truncate(0)
        chain = TokenTree.chain([0] * len(features))  # whichever: it reads no tokens
        rows = range(len(features))
        return (yield Pass(self._head, chain, rows, with_logits=False, features=features))

    def verify(self, pass_: Pass) -> Passes[Rows]:
        """Returns the rows of ``pass_``. Some have gone through the first layers already."""
        rows, new = self._placed(pass_.tree)
        sequence = self.sequence
        if not self._tokens or sequence.n_tokens + len(new) > sequence.context:
            return (yield pass_)
        early_ms = 0.0
        if len(new) > len(self._tokens):
            early_ms = (yield from self._compute(new)).ms
        hidden = {i: np.concatenate(chunks)[rows] for i, chunks in self._hidden.items()}
        sequence.arrange(rows)
        self.align(())
        late = yield pass_._replace(
            hidden_layers=[i for i in pass_.hidden_layers if i > self.layer],
            layers=range(self.layer, sequence.model.n_layers),
            entry=hidden[self.layer],
        )
        late.hidden |= {i: hidden[i] for i in pass_.hidden_layers if i <= self.layer}
        late.ms += early_ms
        return late

    def _placed(self, tree: TokenTree) -> tuple[list[int], TokenTree]:
        """Returns the row of each token of ``tree``, and the drafted tree with all of them."""
        tokens, parents = list(self._tokens), list(self._parents)
        place = {pair: row for row, pair in enumerate(zip(tokens, parents, strict=True))}
        rows: list[int] = []
        for token, above in zip(tree.tokens, tree.parents, strict=True):
            at = token, rows[above] if above >= 0 else above
            if at not in place:
                place[at] = len(tokens)
                tokens.append(token)
                parents.append(at[1])
            rows.append(place[at])
        return rows, TokenTree(tuple(tokens), tuple(parents))

    def _extend(
        self, tokens: Sequence[int], parents: Sequence[int], with_logits: bool
    ) -> Passes[Rows]:
        n_known, above = self.n_rows, [parent + 1 for parent in parents]
        tree = TokenTree((*self._tokens, *tokens), (*self._parents, *above))
        early = yield from self._compute(tree)
        drafted = TokenTree(tree.tokens[1:], tuple(parent - 1 for parent in tree.parents[1:]))
        rows = yield Pass(
            self._head,
            drafted,
            range(n_known, len(drafted)),
            n_known=n_known,
            with_logits=with_logits,
            features=self._features(),
        )
        rows.ms += early.ms
        return rows

    def _compute(self, tree: TokenTree) -> Passes[Rows]:
        """Computes the first layers of what ``tree`` has behind the rows there are."""
        n_known = len(self._tokens)
        self._tokens, self._parents = [], []  # a failed pass leaves no tree
        layers = tuple(i for i in self._role.hidden_layers if i <= self.layer)
        rows = yield Pass(
            self.sequence, tree, (), layers, n_known, with_logits=False, layers=range(self.layer)
        )
        for i in layers:
            self._hidden.setdefault(i, []).append(rows.hidden[i].copy())
        self._tokens, self._parents = list(tree.tokens), list(tree.parents)
        return rows

    def _features(self) -> Float32:
        """Returns what the head reads of the rows computed last."""
        return normed(self._hidden[self.layer][-1], self._role.epsilon)

    def _next(self, text: Sequence[int]) -> int:
        """Returns the place from which on the head reads ``text``: the last, without states."""
        known, last = self._text.features, len(text) - 1
        if not known.first <= last <= known.stop:
            return last
        return max(min(self._text.start + self._n_read(text), last), known.first)

    def _n_read(self, text: Sequence[int]) -> int:
        """Returns how many tokens of the head's sequence are those of ``text``."""
        return common_prefix(self._head.tokens, text[self._text.start :])
