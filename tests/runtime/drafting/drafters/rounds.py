"""Rounds for drafters, made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.models.graph import N_TOP
from edgedec.runtime.config import SamplingConfig
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import (
    Budget,
    DraftContext,
    Drafter,
    Drafting,
    DraftPrompt,
    RoundOutcome,
)
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.row_stats import RowStats

BUDGET = Budget(n_nodes=8, depth=8)


def begin(drafter: Drafter, tokens: Sequence[int]) -> Drafting:
    """Returns the drafter's part in a request with the prompt ``tokens``."""
    return drafter.begin(DraftPrompt(list(tokens)))


def context_of(tokens: Sequence[int], n_prompt: int = 1) -> DraftContext:
    return DraftContext(list(tokens), n_prompt, SamplingConfig(), Noise(0))


def stats_of(*rows: Sequence[tuple[int, float]]) -> RowStats:
    """Returns statistics of rows whose likeliest tokens have these probabilities."""
    ids = np.full((len(rows), N_TOP), -1, np.int64)
    logits = np.full((len(rows), N_TOP), -np.inf, np.float32)
    for i, row in enumerate(rows):
        for j, (token, probability) in enumerate(row[:N_TOP]):
            ids[i, j], logits[i, j] = token, np.log(probability)
    zeros = np.zeros(len(rows), np.float32)
    return RowStats(ids[:, 0].copy(), zeros, zeros, ids, logits)


def outcome_of(
    tree: DraftTree, truth: Sequence[int], rows: Sequence[Sequence[tuple[int, float]]] = ()
) -> RoundOutcome:
    """Returns what a target model that wants ``truth`` makes of ``tree``.

    rows: likeliest tokens of the rows; by default each row knows the last of ``truth`` alone.
    """
    path = tree.matching(truth[:-1])
    emitted = tuple(truth[: len(path) + 1])
    plain = [[(truth[-1], 1.0)]] * (len(tree) + 1)
    return RoundOutcome(tree, tuple(path), emitted, stats_of(*(rows or plain)))


def run_round(
    drafting: Drafting, text: list[int], truth: Sequence[int], budget: Budget = BUDGET
) -> DraftTree:
    """Appends what a round emits to ``text``; returns the tree that was proposed."""
    context = context_of(text)
    tree = drafting.propose(context, budget)
    outcome = outcome_of(tree, truth)
    drafting.observe(context, outcome)
    text += outcome.emitted
    return tree


def paths_of(tree: DraftTree) -> set[tuple[int, ...]]:
    """Returns the tokens from the root to each node."""
    return {tuple(tree.nodes[j].token for j in tree.path(i)) for i in range(len(tree))}


def probability_of(tree: DraftTree, *tokens: int) -> float:
    """Returns the probability of the last of ``tokens`` after the others."""
    found = tree.matching(tokens)
    assert len(found) == len(tokens), f"{tokens} are not in {paths_of(tree)}"
    return tree.nodes[found[-1]].probability


def check_tree(tree: DraftTree, budget: Budget, name: str | None = None) -> None:
    """Asserts what holds of any tree a drafter may propose."""
    assert len(tree) <= budget.n_nodes
    assert all(0 < node.probability < 1 for node in tree.nodes)
    assert all(node.depth <= budget.depth for node in tree.nodes)
    assert all(value >= budget.min_value for value in tree.values())
    for parent in range(ROOT, len(tree)):
        siblings = [tree.nodes[i] for i in tree.children(parent)]
        assert len({node.token for node in siblings}) == len(siblings)
        chances = [node.probability for node in siblings]
        assert chances == sorted(chances, reverse=True)
    if name is not None:
        assert {node.origin for node in tree.nodes} <= {name}
