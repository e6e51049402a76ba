"""What ends a model early: its own norm and LM head, or an adapter with a KV cache of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from edgedec.models.hidden_states import normed
from edgedec.runtime.drafting.drafters.eagle.features import TextFeatures
from edgedec.runtime.drafting.head_role import HeadRole
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.rows import Float32, Rows
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.common_prefix import common_prefix

MAX_READ = 64
"""Most tokens of a text that an adapter reads: its end."""


class ExitHead(Protocol):
    """Says what follows tokens whose hidden states at an exit are known. Shapes: hidden [n, D]."""

    def n_missing(self, text: Sequence[int]) -> int:
        """Returns how many tokens of ``text`` it would read, the last one included."""

    def learn(self, place: int, hidden: Float32) -> None:
        """Takes the hidden states of tokens of the text from ``place`` on."""

    def read(self, text: Sequence[int], hidden: Float32, with_logits: bool) -> Passes[Rows]:
        """Returns the row after ``text``, whose last token has the state ``hidden``."""

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], hidden: Float32, with_logits: bool
    ) -> Passes[Rows]:
        """Returns the rows after drafted ``tokens``; parents: rows of the tree, -1 the text."""

    def end(self) -> None:
        """Gives back what it was lent."""


class BareHead:
    """The model's own head, which looks at one token's hidden state and at nothing else."""

    def __init__(self, role: HeadRole) -> None:
        self._role = role
        self._sequence = role.pool.take(())

    def n_missing(self, text: Sequence[int]) -> int:
        return 1

    def learn(self, place: int, hidden: Float32) -> None:
        """Does nothing: what was before does not matter."""

    def read(self, text: Sequence[int], hidden: Float32, with_logits: bool) -> Passes[Rows]:
        return (yield from self.rows(hidden, with_logits))

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], hidden: Float32, with_logits: bool
    ) -> Passes[Rows]:
        return (yield from self.rows(hidden, with_logits))

    def end(self) -> None:
        self._role.pool.give_back(self._sequence)

    def rows(self, hidden: Float32, with_logits: bool = False) -> Passes[Rows]:
        """Returns a row for each of ``hidden``, whatever exits they are of."""
        chain = TokenTree.chain([0] * len(hidden))  # whichever: it reads no tokens
        features = normed(hidden, self._role.epsilon)
        rows = range(len(hidden))
        return (yield Pass(self._sequence, chain, rows, with_logits=with_logits, features=features))


class AdapterHead:
    """A trained layer, whose KV cache has the text as far back as hidden states are known.

    Rows of drafts are not kept: those that came true are read again, with the next anchor.
    """

    def __init__(self, role: HeadRole) -> None:
        self._role = role
        self._sequence = role.pool.take(())
        self._sequence.truncate(0)
        self._start = 0  # place in the text of the sequence's first token
        self._known = TextFeatures(role.pool.model.capabilities.features)
        self._tokens: list[int] = []
        self._parents: list[int] = []

    def n_missing(self, text: Sequence[int]) -> int:
        return len(text) - self._next(text)

    def learn(self, place: int, hidden: Float32) -> None:
        known, recent = self._known, hidden[-MAX_READ:]
        known.put(place + len(hidden) - len(recent), normed(recent, self._role.epsilon))
        n_read = self._start + self._sequence.n_tokens
        if known.stop - max(known.first, n_read) > MAX_READ:
            known.drop_before(known.stop - MAX_READ)

    def read(self, text: Sequence[int], hidden: Float32, with_logits: bool) -> Passes[Rows]:
        place, last = self._next(text), len(text) - 1
        if self._start <= place <= self._start + self._n_read(text):
            self._sequence.rewind(place - self._start)
        else:
            self._sequence.truncate(0)
        self._start = place - self._sequence.n_tokens
        before = self._known.rows(place, last) if place < last else hidden[:0]
        features = np.concatenate([before, normed(hidden, self._role.epsilon)])
        chain = TokenTree.chain(text[place:])
        self._tokens, self._parents = [], []
        rows = yield Pass(
            self._sequence, chain, (len(chain) - 1,), with_logits=with_logits, features=features
        )
        self._sequence.commit(range(len(chain)))
        self._known.drop_before(last)
        return rows

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], hidden: Float32, with_logits: bool
    ) -> Passes[Rows]:
        n_known = len(self._tokens)
        tree = TokenTree((*self._tokens, *tokens), (*self._parents, *parents))
        self._tokens, self._parents = [], []  # a failed pass leaves no tree
        rows = yield Pass(
            self._sequence,
            tree,
            range(n_known, len(tree)),
            n_known=n_known,
            with_logits=with_logits,
            features=normed(hidden, self._role.epsilon),
        )
        self._tokens, self._parents = list(tree.tokens), list(tree.parents)
        return rows

    def end(self) -> None:
        self._role.pool.give_back(self._sequence)

    def _next(self, text: Sequence[int]) -> int:
        """Returns the place from which on ``text`` is read; without states it is the last one's."""
        known, last = self._known, len(text) - 1
        if not known.first <= last <= known.stop:
            return last
        return max(min(self._start + self._n_read(text), last), known.first)

    def _n_read(self, text: Sequence[int]) -> int:
        """Returns how many tokens of the sequence are those of ``text``."""
        return common_prefix(self._sequence.tokens, text[self._start :])
