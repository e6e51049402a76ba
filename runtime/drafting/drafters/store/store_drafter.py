"""Proposes what followed the end of the text in the n-gram store, and lets the store grow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from edgedec.runtime.drafting.best_first import AcceptanceRates, BestFirst, Option
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt, RoundOutcome
from edgedec.runtime.drafting.match_classes import match_class, match_priors
from edgedec.runtime.drafting.ngrams.ngram_file import SEPARATOR
from edgedec.runtime.drafting.ngrams.ngram_index import LONGEST
from edgedec.runtime.drafting.ngrams.ngram_store import NgramStore
from edgedec.runtime.text.common_prefix import common_prefix

_N_BRANCHES = 3
_CAUTION = 0.8  # other texts are worth less than this one

Rows = tuple[tuple[int, ...], ...]


class StoreDrafter:
    """The trie of what followed the longest match in the store, by how often it did.

    Args:
        is_growing: Whether texts are added to the store when they end.
    """

    name = "store"
    hidden_layers = ()

    def __init__(self, store: NgramStore, is_growing: bool = True) -> None:
        self._store = store
        self._is_growing = is_growing
        self._added: list[int] = []  # the text that was added last
        self._rates = AcceptanceRates(match_priors(_CAUTION))

    def begin(self, prompt: DraftPrompt) -> StoreDrafting:
        """Sorts the store's index if it is not yet, so that the first round need not."""
        self._store.query(prompt.tokens[-LONGEST:], 1)
        return StoreDrafting(self._store, self._rates, self._add)

    def close(self) -> None:
        """Does nothing: the store is on disk whenever a text has ended."""

    def _add(self, tokens: Sequence[int]) -> None:
        """Adds ``tokens`` to the store, but for what they have in common with the text before."""
        if self._is_growing:
            self._store.add(tokens[common_prefix(tokens, self._added) :])
            self._added = list(tokens)


class StoreDrafting:
    """One request's part: nothing but the latest tree."""

    def __init__(
        self, store: NgramStore, rates: AcceptanceRates, add: Callable[[Sequence[int]], None]
    ) -> None:
        """add: called with the whole text when it has ended."""
        self._store = store
        self._add = add
        self._growth: BestFirst[tuple[int, Rows]] = BestFirst(StoreDrafter.name, rates)

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        text = context.tokens[-LONGEST:]
        match = self._store.query(text, budget.depth)
        rows = tuple(tuple(row) for row in match.following)
        first = _options(match.length, rows, 0)
        return self._growth.grow(
            len(context.tokens),
            first,
            lambda state, depth: _options(state[0], state[1], depth),
            budget,
        )

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        self._growth.learn(len(context.tokens), outcome.emitted)

    def end(self, tokens: Sequence[int]) -> None:
        self._add(tokens)


def _options(length: int, rows: Rows, depth: int) -> list[Option[tuple[int, Rows]]]:
    """Returns what follows at ``depth`` in ``rows``, which agree on all before."""
    deeper = [row for row in rows if depth < len(row) and row[depth] != SEPARATOR]
    if not deeper:
        return []
    kind = match_class(length, depth + 1)
    return [
        Option(
            token, n / len(deeper), kind, (length, tuple(r for r in deeper if r[depth] == token))
        )
        for token, n in Counter(row[depth] for row in deeper).most_common(_N_BRANCHES)
    ]
