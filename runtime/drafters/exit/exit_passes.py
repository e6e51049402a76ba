"""Passes of a model's first layers, and of a head that ends it there.

What the first layers made of a drafted token is what verification needs of it: their rows of the KV
cache stay where they are, and the other layers go on from the hidden states between.

Source: LayerSkip (Elhoushi et al., 2024), Kangaroo (Liu et al., 2024).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.models.draft_heads import normed
from edgedec.runtime.drafting.drafter import Promise
from edgedec.runtime.drafting.head_role import HeadRole
from edgedec.runtime.drafting.target_passes import TargetPasses
from edgedec.runtime.sessions.passes import Pass, Passes
from edgedec.runtime.sessions.rows import Float32, Rows
from edgedec.runtime.sessions.sequence import TokenSequence
from edgedec.runtime.sessions.token_tree import TokenTree

_ACCEPTANCE = 0.6
"""Taken for granted before anything was drafted."""


class ExitPasses(TargetPasses):
    """Grows a tree with the target's first layers; the other layers verify it from there.

    layer: layers that run while drafting; may change between proposals.
    """

    takes_guesses = False

    def __init__(self, target: TokenSequence, role: HeadRole) -> None:
        super().__init__(target)
        self.layer = role.hidden_layers[0]
        self._role = role
        self._head = role.pool.take(())
        self._hidden: dict[int, list[Float32]] = {}  # of the tree's rows, by layer
        self.promise = Promise(role.costs[self.layer], _ACCEPTANCE)

    def align(self, text: Sequence[int]) -> int:
        """Forgets the tree."""
        self._hidden = {}
        return super().align(text)

    def end(self, text: Sequence[int]) -> None:
        """Forgets the tree, and gives the head's sequence back."""
        super().end(text)
        self._role.pool.give_back(self._head)

    def verify(self, wanted: Pass) -> Passes[Rows]:
        """Returns the rows of ``wanted``, of which the first layers are computed in part."""
        rows, new = self._placed(wanted.tree)
        sequence = self.sequence
        if not self._tokens or sequence.n_tokens + len(new) > sequence.context:
            return (yield wanted)
        early_ms = 0.0
        if len(new) > len(self._tokens):
            early_ms = (yield from self._compute(new)).ms
        hidden = {i: np.concatenate(found)[rows] for i, found in self._hidden.items()}
        sequence.arrange(rows)
        self.align(())
        late = yield Pass(
            sequence,
            wanted.tree,
            wanted.logit_rows,
            [i for i in wanted.hidden_layers if i > self.layer],
            with_logits=wanted.with_logits,
            layers=range(self.layer, sequence.model.n_layers),
            entry=hidden[self.layer],
        )
        early = {i: hidden[i] for i in wanted.hidden_layers if i <= self.layer}
        return Rows(late.logits, late.hidden | early, late.row_stats, early_ms + late.ms)

    def ask(self, hidden: Float32) -> Passes[Rows]:
        """Returns what the head says after tokens with the states ``hidden`` [n, D] at an exit."""
        return (yield from self._head_rows(hidden, with_logits=False))

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
        tree = TokenTree((*self._tokens, *tokens), (*self._parents, *parents))
        early = yield from self._compute(tree)
        rows = yield from self._head_rows(self._hidden[self.layer][-1], with_logits)
        rows.ms += early.ms
        return rows

    def _head_rows(self, hidden: Float32, with_logits: bool) -> Passes[Rows]:
        """Returns a row of the head for each of ``hidden``; it looks at nothing else."""
        features, n = normed(hidden, self._role.epsilon), len(hidden)
        chain = TokenTree.chain([0] * n)  # whichever: it reads no tokens
        return (yield Pass(self._head, chain, range(n), with_logits=with_logits, features=features))

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
