"""Passes of a model's first layers, and of a head that ends it there.

What the first layers made of a drafted token is what verification needs of it: their rows of the KV
cache stay where they are, and the other layers go on from the hidden states between.

Source: LayerSkip (Elhoushi et al., 2024), Kangaroo (Liu et al., 2024).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.runtime.drafting.draft_cost import Promise
from edgedec.runtime.drafting.drafters.exit.exit_heads import AdapterHead, BareHead, ExitHead
from edgedec.runtime.drafting.head_role import HeadRole
from edgedec.runtime.drafting.target_passes import TargetPasses
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.rows import Float32, Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree


class ExitPasses(TargetPasses):
    """Grows a tree with the target's first layers; the other layers verify it from there.

    layer: layers that run while drafting; may change between proposals.
    """

    takes_guesses = False

    def __init__(self, target: TokenSequence, role: HeadRole, layer: int) -> None:
        super().__init__(target)
        self.layer = layer
        self._role = role
        self.head: ExitHead = AdapterHead(role) if role.is_adapter else BareHead(role)
        self._hidden: dict[int, list[Float32]] = {}  # of the tree's rows, by layer
        self.promise = Promise(role.costs[self.layer], role.acceptance)

    def align(self, text: Sequence[int]) -> int:
        """Forgets the tree."""
        self._hidden = {}
        return super().align(text)

    def end(self, text: Sequence[int]) -> None:
        """Forgets the tree, and gives back what the head was lent."""
        super().end(text)
        self.head.end()

    def n_missing(self, text: Sequence[int]) -> int:
        """Returns how many tokens the head would read."""
        return self.head.n_missing(text)

    def feed(self, text: Sequence[int], with_logits: bool) -> Passes[Rows]:
        """Computes the anchor's first layers; returns the head's row after it."""
        assert self.sequence.n_tokens == len(text) - 1
        early = yield from self._compute(TokenTree.chain(text[-1:]))
        rows = yield from self.head.read(text, self._hidden[self.layer][-1], with_logits)
        self.cost.n_fed += 1
        self.cost.feed_ms += early.ms + rows.ms
        return rows

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
        late = yield Pass(
            sequence,
            pass_.tree,
            pass_.logit_rows,
            [i for i in pass_.hidden_layers if i > self.layer],
            with_logits=pass_.with_logits,
            layers=range(self.layer, sequence.model.n_layers),
            entry=hidden[self.layer],
        )
        early = {i: hidden[i] for i in pass_.hidden_layers if i <= self.layer}
        return Rows(late.logits, late.hidden | early, late.row_stats, early_ms + late.ms)

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
        hidden, above = self._hidden[self.layer][-1], [parent - 1 for parent in parents]
        rows = yield from self.head.grow(tokens, above, hidden, with_logits)
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
