"""The planner of method `auto`: drafts as much as pays on this device and this text, or nothing.

Each round it maximises expected tokens per millisecond. Free drafters always propose; nodes are
taken in the order of their chance while the next one earns more than its row costs (goodput,
SmartSpec section 4; knee rule over a tree by value, DySpec section 4 and Sequoia section 4.2). A
draft model is asked when its expected levels, at their measured acceptance and its measured step
time, beat what the free drafters promise; it stops by itself once the next level is not worth its
step. Estimates are corrected by what was accepted of late, so a change of text shows within a few
rounds; proposals that were not verified are compared with the emitted text all the same, which
costs nothing, and a draft model that lost is tried again at growing distances.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgedec.runtime.decoding.acceptance import DepthRates, Trust
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.decoding.decisions import Decision, DecisionLog
from edgedec.runtime.decoding.draft_tree import ROOT, DraftTree
from edgedec.runtime.decoding.guarded import GuardedDrafter, failures
from edgedec.runtime.decoding.planner import RoundTimings
from edgedec.runtime.drafters.best_first import MAX_PROBABILITY
from edgedec.runtime.drafters.draft_passes import DraftCost
from edgedec.runtime.drafters.drafter import Budget, DraftContext, Drafter, RoundOutcome
from edgedec.runtime.drafters.fusion import fuse

MAX_NODES = 15
"""One row of sixteen is the anchor; beyond sixteen the cost of a row rises."""

MAX_LEVELS = 6
_FREE = Budget(n_nodes=MAX_NODES, depth=MAX_NODES, min_value=0.02)
_MODEL_PRIOR = 0.7
_NODES_PER_LEVEL = 2.0
_LATER_GAIN = 0.8  # of a drafted level is what a level after it brings on average
_MARGIN = 1.03  # a draft model must promise this much more than doing without it
_USUAL_FEED = 2  # tokens of the text a draft model has yet to see in most rounds
_HORIZON = 64  # tokens over which catching up with the text has to pay
_FIRST_REST, _LONGEST_REST = 8, 128  # rounds a draft model that lost is left alone


class ModelDrafter(Drafter, Protocol):
    """A drafter that runs passes of a model."""

    @property
    def cost(self) -> DraftCost:
        """What the latest proposal cost."""

    def n_missing(self, tokens: Sequence[int]) -> int:
        """Returns how many tokens the next proposal after ``tokens`` has to compute first."""


@dataclass(frozen=True)
class ModelPlan:
    """What a draft model promises. rate: tokens per millisecond. levels: how deep to draft."""

    levels: int = 0
    rate: float = 0.0


class Controller:
    """A `Planner` that weighs free drafters, a draft model and plain decoding each round.

    Args:
        target_costs: Called when a round has to be planned and returns the target's cost table;
            measuring may happen then.
        draft_costs: The same of the draft model's session, if there is one.
    """

    name = "auto"

    def __init__(
        self,
        free: Sequence[Drafter],
        target_costs: Callable[[], CostTable],
        model: ModelDrafter | None = None,
        draft_costs: Callable[[], CostTable] | None = None,
        log: DecisionLog | None = None,
    ) -> None:
        self._free = [GuardedDrafter(drafter) for drafter in free]
        self._model = model
        self._guarded_model = GuardedDrafter(model) if model is not None else None
        self._target_costs = target_costs
        self._draft_costs = draft_costs
        self._trust = {drafter.name: Trust() for drafter in free}
        self._depth_rates = DepthRates(_MODEL_PRIOR, MAX_LEVELS)
        self._step_scale = 1.0
        self._rest = self._next_rest = 0
        self.log = log or DecisionLog()
        self._proposed = DraftTree()
        self._decision: Decision | None = None

    @property
    def failures(self) -> dict[str, str]:
        return failures(self._all)

    @property
    def _all(self) -> list[GuardedDrafter]:
        return [*self._free, *([self._guarded_model] if self._guarded_model else [])]

    def begin(self, tokens: Sequence[int]) -> None:
        for drafter in self._all:
            drafter.begin(tokens)
        self._rest, self._next_rest = 0, _FIRST_REST
        self.log.clear()

    def propose(self, context: DraftContext, room: Budget) -> DraftTree:
        costs = self._target_costs()
        tree = self._ask_free(context, room)
        chosen, rate = best_part(tree, costs, 0.0, room.n_nodes)
        plan = self._plan_model(context, room, costs, rate)
        draft_ms = 0.0
        if plan.levels and plan.rate > _MARGIN * rate:
            tree = self._ask_model(context, room, costs, plan, tree)
            draft_ms = self._drafted_ms()
            chosen, rate = best_part(tree, costs, draft_ms, room.n_nodes)
        self._proposed = reordered(tree, chosen)
        plain = 1.0 / costs.ms(1)
        self._decision = Decision(len(chosen), plan.levels if draft_ms else 0, rate / plain)
        return self._proposed.subtree(range(len(chosen)))

    def observe(
        self, context: DraftContext, outcome: RoundOutcome, timings: RoundTimings | None
    ) -> None:
        tree, self._proposed = self._proposed, DraftTree()
        path = tree.matching(outcome.emitted)
        whole = dataclasses.replace(outcome, tree=tree, path=tuple(path))
        for drafter in self._all:
            drafter.observe(context, whole)
        if timings is None or self._decision is None:
            return
        self._learn(tree, outcome, path, timings)
        n_accepted = len(outcome.path)
        self.log.add(self._decision, n_accepted, timings.draft_ms + timings.verify_ms)

    def end(self, tokens: Sequence[int]) -> None:
        for drafter in self._all:
            drafter.end(tokens)

    def close(self) -> None:
        for drafter in self._all:
            drafter.close()

    def explain(self) -> list[str]:
        """Returns what was decided how often, and what it promised and brought."""
        return self.log.lines(1.0 / self._target_costs().ms(1))

    def _ask_free(self, context: DraftContext, room: Budget) -> DraftTree:
        budget = dataclasses.replace(_FREE, depth=min(_FREE.depth, room.depth))
        found = []
        for drafter in self._free:
            tree = drafter.propose(context, budget)
            if len(tree):
                found.append(scaled(tree, self._trust[drafter.name].factor))
        return found[0] if len(found) == 1 else fuse(found, budget)

    def _plan_model(
        self, context: DraftContext, room: Budget, costs: CostTable, free_rate: float
    ) -> ModelPlan:
        """Returns how many levels of the draft model promise most tokens per millisecond."""
        if self._model is None or self._guarded_model is None or self._guarded_model.failure:
            return ModelPlan()
        if self._rest > 0:
            self._rest -= 1
            # Its rates are those of the time it lost; only another try gives new ones.
            is_due = self._rest == 0 and room.depth >= 2
            return ModelPlan(2, math.inf) if is_due else ModelPlan()
        step_ms = self._step_ms()
        best = ModelPlan()
        for levels in range(1, min(MAX_LEVELS, room.depth) + 1):
            n_rows = min(1 + round(_NODES_PER_LEVEL * levels), room.n_nodes + 1)
            ms = levels * step_ms + costs.ms(n_rows)
            rate = (1 + self._depth_rates.expected_tokens(levels)) / ms
            if rate > best.rate:
                best = ModelPlan(levels, rate)
        if best.rate <= _MARGIN * free_rate:
            return best
        catch_up_ms = self._catch_up_ms(self._model.n_missing(context.tokens))
        saved_ms = min(room.depth, _HORIZON) * (1 / free_rate - 1 / best.rate)
        return best if saved_ms > catch_up_ms else ModelPlan()

    def _ask_model(
        self,
        context: DraftContext,
        room: Budget,
        costs: CostTable,
        plan: ModelPlan,
        free: DraftTree,
    ) -> DraftTree:
        """Returns the draft model's tree with the free drafters' hung in."""
        assert self._guarded_model is not None
        rate = min(plan.rate, 1.0 / costs.ms(1)) if math.isinf(plan.rate) else plan.rate
        worth = self._step_ms() * rate / _LATER_GAIN
        budget = Budget(
            n_nodes=min(2 * MAX_NODES, room.n_nodes),
            depth=min(2 if math.isinf(plan.rate) else MAX_LEVELS, room.depth),
            min_value=0.5 * (costs.ms(8) - costs.ms(4)) / 4 * rate,
            min_step_value=worth,
            n_step_nodes=2,
        )
        tree = self._guarded_model.propose(context, budget)
        return fuse([tree, free], budget) if len(free) and len(tree) else tree

    def _learn(
        self, tree: DraftTree, outcome: RoundOutcome, path: list[int], timings: RoundTimings
    ) -> None:
        assert self._decision is not None
        n_verified = self._decision.n_nodes
        self._target_costs().observe(n_verified + 1, timings.verify_ms)
        accepted = set(path)
        tested = set()
        for i in (ROOT, *path):
            for child in tree.children(i):
                node = tree.nodes[child]
                if (trust := self._trust.get(node.origin)) is not None:
                    trust.observe(node.probability / trust.factor, child in accepted)
                    tested.add(node.origin)
        for name, trust in self._trust.items():
            if name not in tested:
                trust.forget()
        if self._decision.n_levels:
            self._learn_model(tree, len(path))

    def _learn_model(self, tree: DraftTree, n_accepted: int) -> None:
        assert self._model is not None
        cost = self._model.cost
        is_usual = 0 < cost.n_fed <= _USUAL_FEED
        n_steps = cost.n_levels + is_usual
        if n_steps:
            measured = (cost.level_ms + is_usual * cost.feed_ms) / n_steps
            change = min(max(measured / self._step_ms(), 0.67), 1.5)
            self._step_scale *= change**0.1
        self._depth_rates.observe(min(cost.n_levels + 1, MAX_LEVELS), n_accepted)
        step_ms, costs = self._step_ms(), self._target_costs()
        hoped = 1 + self._depth_rates.expected_tokens(1)
        if hoped / (step_ms + costs.ms(2)) > 1 / costs.ms(1):
            self._next_rest = _FIRST_REST
        else:
            self._rest = self._next_rest
            self._next_rest = min(2 * self._next_rest, _LONGEST_REST)

    def _step_ms(self) -> float:
        assert self._draft_costs is not None
        return self._step_scale * self._draft_costs().ms(1)

    def _drafted_ms(self) -> float:
        """Returns what the latest proposal cost, catching up with much text aside."""
        assert self._model is not None
        cost = self._model.cost
        return cost.level_ms + (cost.feed_ms if cost.n_fed <= _USUAL_FEED else 0.0)

    def _catch_up_ms(self, n_tokens: int) -> float:
        """Returns what seeing ``n_tokens`` costs the draft model, the usual one or two aside."""
        assert self._draft_costs is not None
        return max(0, n_tokens - _USUAL_FEED) * self._draft_costs().ms(16) / 16


def best_part(
    tree: DraftTree, costs: CostTable, spent_ms: float, n_nodes: int
) -> tuple[list[int], float]:
    """Returns the nodes that give most tokens per millisecond, likeliest first, and that rate.

    spent_ms: what the round has cost already.
    """
    values = tree.values()
    order = sorted(range(len(tree)), key=lambda i: (-values[i], i))[: min(n_nodes, MAX_NODES)]
    expected, best_n, best_rate = 1.0, 0, 1.0 / (spent_ms + costs.ms(1))
    for n, i in enumerate(order, start=1):
        expected += values[i]
        rate = expected / (spent_ms + costs.ms(n + 1))
        if rate > best_rate:
            best_n, best_rate = n, rate
    return order[:best_n], best_rate


def scaled(tree: DraftTree, factor: float) -> DraftTree:
    """Returns ``tree`` with its probabilities multiplied, none of them certain."""
    result = DraftTree()
    for node in tree.nodes:
        probability = min(factor * node.probability, MAX_PROBABILITY)
        result.add(node.token, node.parent, probability, node.origin)
    return result


def reordered(tree: DraftTree, first: Sequence[int]) -> DraftTree:
    """Returns ``tree`` with the ``first`` nodes, closed under parents, before all others."""
    chosen = sorted(first)
    rest = sorted(set(range(len(tree))) - set(chosen))
    result, index_of = DraftTree(), {ROOT: ROOT}
    for i in (*chosen, *rest):
        node = tree.nodes[i]
        parent = index_of[node.parent]
        index_of[i] = result.add(node.token, parent, node.probability, node.origin)
    return result
