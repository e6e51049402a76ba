"""Proposes the candidates that the target model had in mind last time after the same token.

Source: Token Recycling (Luo et al., 2024). Instead of a fixed tree of 80 nodes the likeliest few
are taken, by the acceptance learnt of each place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from edgedec.models.graph import N_TOP
from edgedec.runtime.drafting.best_first import AcceptanceRates, BestFirst, Option
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt, RoundOutcome

_RANK_PRIORS = (0.45, 0.15, 0.08, 0.05, 0.03, 0.02, 0.02, 0.01)
_SEED_PRIORS = (0.3, 0.1, 0.05, 0.04, 0.03, 0.02, 0.02, 0.01)
_DEPTH_STARTS = (1, 2, 3, 5)


class TokenRecycling:
    """A table of the eight tokens that last seemed likeliest after each token.

    It learns from every verified row, those of rejected drafts included, and outlives requests.
    Tokens without a row yet are looked up among the neighbours in the prompts.
    """

    name = "recycling"
    hidden_layers = ()

    def __init__(self) -> None:
        self._table: dict[int, list[int]] = {}
        self._seeds: dict[int, list[int]] = {}
        priors = [p for table in (_RANK_PRIORS, _SEED_PRIORS) for p in table for _ in _DEPTH_STARTS]
        self.rates = AcceptanceRates(priors)

    def begin(self, prompt: DraftPrompt) -> RecyclingDrafting:
        """Seeds rows that are cold with the neighbours in the prompt, the latest first."""
        for token, successor in pairwise(prompt.tokens):
            if token not in self._table:
                row = self._seeds.setdefault(token, [])
                if successor in row:
                    row.remove(successor)
                row.insert(0, successor)
                del row[N_TOP:]
        return RecyclingDrafting(self)

    def close(self) -> None:
        self._table.clear()
        self._seeds.clear()

    def store(self, token: int, row: list[int]) -> None:
        """Keeps what the model found likeliest after ``token``."""
        self._table[token] = row if row[-1] >= 0 else [id_ for id_ in row if id_ >= 0]

    def successors(self, token: int) -> list[int]:
        """Returns the tokens the table holds for after ``token``, likeliest first."""
        return list(self._table.get(token) or self._seeds.get(token, []))

    def options(self, token: int, depth: int) -> list[Option[int]]:
        """Returns what may follow ``token``, ``depth`` tokens drafted already."""
        row, first = self._table.get(token), 0
        if row is None:
            row, first = self._seeds.get(token, []), N_TOP
        column = bisect_right(_DEPTH_STARTS, depth + 1) - 1
        return [
            Option(successor, 1.0, (first + rank) * len(_DEPTH_STARTS) + column, successor)
            for rank, successor in enumerate(row)
        ]


class RecyclingDrafting:
    """One request's part: nothing but the latest tree."""

    def __init__(self, table: TokenRecycling) -> None:
        self._table = table
        self._growth: BestFirst[int] = BestFirst(table.name, table.rates)

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        first = self._table.options(context.tokens[-1], 0)
        return self._growth.grow(len(context.tokens), first, self._table.options, budget)

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        self._growth.learn(len(context.tokens), outcome.emitted)
        anchor, nodes = context.tokens[-1], outcome.tree.nodes
        rows = outcome.stats.top_ids.tolist()
        for i in rows_to_store(outcome, len(rows)):
            self._table.store(anchor if i == ROOT else nodes[i].token, rows[i + 1])

    def end(self, tokens: Sequence[int]) -> None:
        """Does nothing: the table holds what the model thinks, not a text."""


def rows_to_store(outcome: RoundOutcome, n_rows: int) -> Iterator[int]:
    """Yields the nodes with a verified row, ROOT for the anchor, the most credible last.

    Credible is what was accepted, and what comes after more tokens: whoever stores the rows in
    this order keeps the best of those with the same token, whatever the order of the tree.
    """
    nodes, accepted = outcome.tree.nodes, frozenset(outcome.path)
    others: Iterable[int] = (i for i in range(min(n_rows - 1, len(nodes))) if i not in accepted)
    yield from sorted(others, key=lambda i: (nodes[i].depth, -i))
    if n_rows:
        yield ROOT
    yield from (i for i in outcome.path if i < n_rows - 1)
