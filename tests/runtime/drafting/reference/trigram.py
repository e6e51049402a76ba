"""Proposes what most often came third after the last two tokens.

Source: the tri-gram table of ADED (Li et al., 2024), with best-first growth in place of its
simulations: both visit the likeliest sequences.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from edgedec.runtime.drafting.best_first import AcceptanceRates, BestFirst, Option
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt, RoundOutcome
from edgedec.runtime.sequences.row_stats import RowStats

_N_CANDIDATES = 4  # of a verified row
_MIN_PROBABILITY = 0.03  # of a candidate that is counted
_PRIOR_TOTAL = 0.5  # counts that would have to be seen to be half believed
_N_OPTIONS = 8  # successors kept per pair
_FULL = 32.0  # a pair's counts are halved when they sum up to more: what is new counts more
_TOTAL_STARTS = (0.0, 1.5, 3.0, 8.0)
_DEPTH_STARTS = (1, 2, 4)
_PRIORS = (0.7, 0.8, 0.9, 0.9)

Pair = tuple[int, int]


class Trigrams:
    """Counts of third tokens, kept across requests.

    Emitted text and prompts count 1 a token, candidates of the target model their probability.
    Beyond ``max_pairs`` the pairs not touched for longest are forgotten.
    """

    name = "trigram"
    hidden_layers = ()

    def __init__(self, max_pairs: int = 200_000) -> None:
        self._max_pairs = max_pairs
        self._counts: dict[Pair, dict[int, float]] = {}  # the pair touched last comes last
        self.rates = AcceptanceRates(prior for prior in _PRIORS for _ in _DEPTH_STARTS)

    def begin(self, prompt: DraftPrompt) -> TrigramDrafting:
        """Returns the part of a request, the prompt counted."""
        return TrigramDrafting(self, prompt.tokens)

    def close(self) -> None:
        self._counts.clear()

    def counts(self, before: int, last: int) -> dict[int, float]:
        """Returns what was counted after two tokens."""
        return dict(self._counts.get((before, last), {}))

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, pair: Pair, found: Sequence[tuple[int, float]]) -> None:
        """Counts what came, or may have come, after two tokens."""
        counts = self._counts.pop(pair, None)
        if counts is None:
            counts = {}
            if len(self._counts) >= self._max_pairs:
                del self._counts[next(iter(self._counts))]
        self._counts[pair] = counts
        for token, weight in found:
            counts[token] = counts.get(token, 0.0) + weight
        if len(counts) > _N_OPTIONS or sum(counts.values()) > _FULL:
            self._counts[pair] = _reduced(counts)

    def options(self, pair: Pair, depth: int) -> list[Option[Pair]]:
        """Returns what may follow two tokens, ``depth`` of them drafted already."""
        counts = self._counts.get(pair)
        if counts is None:
            return []
        total = sum(counts.values())
        row = bisect_right(_TOTAL_STARTS, total) - 1
        kind = row * len(_DEPTH_STARTS) + bisect_right(_DEPTH_STARTS, depth + 1) - 1
        last, scale = pair[1], 1.0 / (total + _PRIOR_TOTAL)
        return [Option(token, c * scale, kind, (last, token)) for token, c in counts.items()]


class TrigramDrafting:
    """One request's part: how much of its text is counted."""

    def __init__(self, table: Trigrams, tokens: Sequence[int]) -> None:
        self._table = table
        self._n_followed = 0
        self._growth: BestFirst[Pair] = BestFirst(table.name, table.rates)
        self._follow(tokens)

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        tokens = context.tokens
        self._follow(tokens)
        if len(tokens) < 2:
            return DraftTree()
        first = self._table.options((tokens[-2], tokens[-1]), 0)
        return self._growth.grow(len(tokens), first, self._table.options, budget)

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        self._growth.learn(len(context.tokens), outcome.emitted)
        if len(context.tokens) < 2:
            return
        before, anchor = context.tokens[-2], context.tokens[-1]
        stats, nodes = outcome.stats, outcome.tree.nodes
        candidates = _candidates(stats)
        self._table.add((before, anchor), candidates[0])
        for node, found in zip(nodes, candidates[1:], strict=False):
            above = anchor if node.parent == ROOT else nodes[node.parent].token
            self._table.add((above, node.token), found)

    def end(self, tokens: Sequence[int]) -> None:
        self._follow(tokens)

    def _follow(self, tokens: Sequence[int]) -> None:
        """Counts what ``tokens`` hold beyond those counted already."""
        for i in range(max(2, self._n_followed), len(tokens)):
            self._table.add((tokens[i - 2], tokens[i - 1]), ((tokens[i], 1.0),))
        self._n_followed = len(tokens)


def _candidates(stats: RowStats) -> list[list[tuple[int, float]]]:
    """Returns the likely tokens of each row, with their probabilities."""
    ids = stats.top_ids[:, :_N_CANDIDATES].tolist()
    logits = stats.top_logits[:, :_N_CANDIDATES].tolist()
    found = []
    for of_row, row, total in zip(ids, logits, stats.log_sum_exp.tolist(), strict=True):
        # NumPy's exponential takes as long for these few as all else here: it is not in caches.
        probs = [math.exp(logit - total) for logit in row]
        likely = zip(of_row, probs, strict=True)
        found.append([(i, p) for i, p in likely if p >= _MIN_PROBABILITY])
    return found


def _reduced(counts: dict[int, float]) -> dict[int, float]:
    """Returns the largest counts, halved when they sum up to much."""
    largest = sorted(counts.items(), key=lambda c: -c[1])[:_N_OPTIONS]
    scale = 0.5 if sum(counts.values()) > _FULL else 1.0
    return {token: scale * count for token, count in largest}
