"""A sequence kept in step with the text: what it has computed, and a tree grown behind that."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from edgedec.runtime.drafting.draft_cost import DraftCost
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.prefill import feed
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.common_prefix import common_prefix

PREFIX = -1
"""Row that drafts at the end of the text hang on."""


class DraftPasses:
    """Grows one tree of drafted tokens behind the text; what comes true is kept.

    All tokens are the draft model's.

    rows_per_step: rows that it reads in the time of a step of plain decoding; infinity until that
        is known.
    """

    hidden_layers: Sequence[int] = ()
    """Layers whose hidden states come with the rows."""
    takes_guesses = True
    """Whether a row may follow another of the same pass, which is not known to be wanted."""

    def __init__(
        self,
        sequence: TokenSequence,
        give_back: Callable[[TokenSequence], None] = lambda sequence: None,
    ) -> None:
        """give_back: called with the sequence when the output has ended."""
        self.sequence = sequence
        self._give_back = give_back
        self.cost = DraftCost()  # of the latest proposal
        self.rows_per_step = math.inf
        self._tokens: list[int] = []  # of the tree, in the order computed
        self._parents: list[int] = []

    def begin_proposal(self) -> None:
        """Starts counting the cost of another proposal."""
        self.cost = DraftCost()

    def n_missing(self, text: Sequence[int]) -> int:
        """Returns how many tokens of ``text`` are not computed yet."""
        return len(text) - common_prefix(self.sequence.tokens, text)

    def price(self, row_ms: float, step_ms: float) -> None:
        """Takes in the milliseconds of a computed row, and of a step of plain decoding.

        `n_missing` counts cheaper rows by what a computed one takes.
        """
        self.rows_per_step = step_ms / row_ms

    def n_predicted(self, text: Sequence[int]) -> int:
        """Returns how many rows of ``text`` are, or will be, no computed ones."""
        return 0

    def read_exactly(self) -> None:
        """Has the next feed compute all rows."""

    def align(self, text: Sequence[int]) -> int:
        """Makes the committed tokens a prefix of ``text``; returns the last row of the tree on it.

        Rows of drafted tokens that came true are kept, all others forgotten. `PREFIX` when none
        was kept.
        """
        sequence = self.sequence
        n_common = common_prefix(sequence.tokens, text)
        path: list[int] = []
        if n_common < sequence.n_tokens:
            sequence.rewind(n_common)
        else:
            path = self._way(text[n_common:])
        self._tokens, self._parents = [], []
        if path:
            sequence.commit(path)
        return path[-1] if path else PREFIX

    def feed(self, text: Sequence[int], with_logits: bool) -> Passes[Rows]:
        """Computes what `align` found missing of ``text``; returns the row after its end."""
        n_missing = max(1, len(text) - self.sequence.n_tokens)  # the last one's row is wanted
        rows = yield from feed(
            self.sequence, text, with_logits=with_logits, hidden_layers=self.hidden_layers
        )
        self.cost.n_fed += n_missing
        self.cost.feed_ms += rows.ms
        return rows

    def fits(self, text: Sequence[int]) -> bool:
        """Whether the KV cache has rows for ``text``."""
        return len(text) <= self.sequence.context

    def has_room(self, n_new: int) -> bool:
        """Whether the KV cache has rows for ``n_new`` more drafted tokens."""
        return self.sequence.n_tokens + len(self._tokens) + n_new <= self.sequence.context

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], with_logits: bool
    ) -> Passes[Rows]:
        """Returns the rows after ``tokens``, which follow the rows ``parents`` of the tree.

        Their own rows are numbered on from those before.
        """
        rows = yield from self._extend(tokens, parents, with_logits)
        self.cost.n_levels += 1
        self.cost.n_level_rows += len(tokens)
        self.cost.level_ms += rows.ms
        return rows

    def catch_up(self, text: Sequence[int]) -> Passes[int]:
        """Computes, after the end, what was not of ``text``; returns how many tokens that were."""
        return 0
        yield  # makes it a step without passes

    def end(self, text: Sequence[int]) -> None:
        """Keeps the rows of ``text`` and no others, and gives the sequence back."""
        self.align(text)
        self._give_back(self.sequence)

    @property
    def n_rows(self) -> int:
        """Rows of the tree so far."""
        return len(self._tokens)

    def _extend(
        self, tokens: Sequence[int], parents: Sequence[int], with_logits: bool
    ) -> Passes[Rows]:
        n_known = len(self._tokens)
        tree = TokenTree((*self._tokens, *tokens), (*self._parents, *parents))
        self._tokens, self._parents = [], []  # a failed pass leaves no tree
        rows = yield Pass(
            self.sequence,
            tree,
            range(n_known, len(tree)),
            self.hidden_layers,
            n_known=n_known,
            with_logits=with_logits,
        )
        self._tokens, self._parents = list(tree.tokens), list(tree.parents)
        return rows

    def _way(self, text: Sequence[int]) -> list[int]:
        """Returns the rows of the tree that spell the beginning of ``text``."""
        path: list[int] = []
        last = PREFIX
        for token in text:
            last = next(
                (
                    row
                    for row in range(last + 1, len(self._tokens))
                    if self._parents[row] == last and self._tokens[row] == token
                ),
                PREFIX,
            )
            if last == PREFIX:
                break
            path.append(last)
        return path
