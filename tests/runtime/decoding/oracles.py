"""Made-up drafters whose worth is known, and costs that nobody measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edgedec.runtime.config import SamplingConfig
from edgedec.runtime.decoding.auto_planner import AutoPlanner
from edgedec.runtime.decoding.cost_book import TARGET, CostBook
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.decoding.planner import Planning, RoundTimings
from edgedec.runtime.drafting.draft_cost import DraftCost
from edgedec.runtime.drafting.draft_passes import DraftPasses
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import (
    Budget,
    DraftContext,
    DraftPrompt,
    ModelDrafting,
    RoundOutcome,
    Unread,
)
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import Passes, run_passes
from edgedec.runtime.sequences.row_stats import RowStats
from edgedec.runtime.sequences.rows import Rows

from ..conftest import ToySession

TEXT = [int(x) for x in np.random.default_rng(0).integers(0, 1000, 600)]


class Oracle:
    """Proposes the coming text, right with a given chance, and claims another."""

    hidden_layers = ()
    reads_end_only = False
    n_unread = 1  # tokens to compute before the first proposal
    n_predicted = 0  # tokens it has not read
    right_when_read = 0.0  # once it has

    def __init__(self, right: float, claimed: float, depth: int = 4, name: str = "oracle") -> None:
        self.name = name
        self.right = right
        self.claimed = claimed
        self.depth = depth
        self.n_asked = 0
        self.cost = DraftCost()
        self._rng = np.random.default_rng(1)

    def begin(self, prompt: DraftPrompt) -> Oracle:
        return self

    def end(self, tokens: Sequence[int]) -> None: ...

    def close(self) -> None: ...

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None: ...

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        self.n_asked += 1
        tree, parent, at = DraftTree(), ROOT, len(context.tokens)
        n_levels = min(self.depth, budget.depth)
        self.cost = DraftCost(1, 2.0, n_levels - 1, n_levels - 1, 2.0 * (n_levels - 1), n_levels)
        are_right = self._rng.random(self.depth) < self.right  # whatever the budget
        for i in range(n_levels):
            token = TEXT[at + i] if are_right[i] else 1000
            parent = tree.add(token, parent, self.claimed, self.name)
        return tree


class OracleModel:
    """A model that drafts as an `Oracle` does."""

    hidden_layers = ()

    def __init__(self, oracle: Oracle) -> None:
        self.name = oracle.name
        self._oracle = oracle

    def begin(self, prompt: DraftPrompt) -> OracleDrafting:
        return OracleDrafting(self._oracle)

    def close(self) -> None: ...


class OracleDrafting(ModelDrafting):
    """An `Oracle` in one request."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self.passes = DraftPasses(ToySession(1))

    def unread(self, tokens: Sequence[int]) -> Unread:
        n_missing = 1 if self._oracle.n_asked else self._oracle.n_unread
        return Unread(n_missing, self._oracle.n_predicted, self._oracle.reads_end_only)

    def read_exactly(self) -> None:
        self._oracle.n_predicted = 0
        self._oracle.right = self._oracle.right_when_read

    def propose(self, context: DraftContext, budget: Budget) -> Passes[DraftTree]:
        tree = self._oracle.propose(context, budget)
        self.passes.cost = self._oracle.cost
        return tree
        yield

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None: ...

    def end(self, tokens: Sequence[int]) -> None: ...


class KnownCosts(CostBook):
    """Costs that nobody measures."""

    def __init__(self, target: dict[int, float]) -> None:
        super().__init__()
        self._tables = {
            TARGET: CostTable(dict(target)),
            "draft": CostTable({1: 2.0, 16: 4.0}),
            "head": CostTable({1: 1.0, 16: 2.0}),
        }


FLAT = {1: 10.0, 2: 10.5, 4: 11.0, 8: 14.0, 16: 23.0}
STEEP = {1: 10.0, 2: 20.0, 4: 40.0, 8: 80.0, 16: 160.0}


def run(planner: AutoPlanner, costs: dict[int, float], n_rounds: int) -> tuple[list[int], float]:
    """Plays rounds over TEXT; returns drafted nodes per round and tokens per millisecond."""
    return play(begin(planner), costs, n_rounds)


def begin(planner: AutoPlanner, clock: Callable[[], float] = lambda: 0.0) -> Planning:
    """Begins an output; drafters take no time, but by another clock."""
    return planner.begin(DraftPrompt(TEXT[:10]), clock)


def play(planning: Planning, costs: dict[int, float], n_rounds: int) -> tuple[list[int], float]:
    """Plays the rounds of one output."""
    tokens = TEXT[:10]
    sizes, ms = [], 0.0
    truth = CostTable(dict(costs))
    for _ in range(n_rounds):
        if planning.is_resting:
            planning.rested(Rows(np.zeros((1, 8), np.float32), ms=truth.ms(1)))
            tokens = TEXT[: len(tokens) + 1]
            sizes.append(0)
            ms += truth.ms(1)
            continue
        context = DraftContext(tokens, 10, SamplingConfig(), Noise(0))
        tree = run_passes(planning.propose(context, Budget(n_nodes=100, depth=100)))
        path = tree.matching(TEXT[len(tokens) :])
        emitted = tuple(TEXT[len(tokens) : len(tokens) + len(path) + 1])
        stats = RowStats.of(np.zeros((len(tree) + 1, 8), np.float32))
        outcome = RoundOutcome(tree, tuple(path), emitted, stats)
        took = truth.ms(len(tree) + 1)
        planning.observe(context, outcome, RoundTimings(0.0, took))
        tokens = [*tokens, *emitted]
        sizes.append(len(tree))
        ms += took
    return sizes, (len(tokens) - 10) / ms


def make(free: list[Oracle], costs: dict[int, float], *models: Oracle) -> AutoPlanner:
    return AutoPlanner(
        free, KnownCosts(costs), {model.name: OracleModel(model) for model in models}
    )
