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
from collections.abc import Sequence

from edgedec.runtime.decoding.acceptance import Backoff, Trust
from edgedec.runtime.decoding.cost_book import CostBook
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.decoding.decisions import Decision, DecisionLog
from edgedec.runtime.decoding.model_advisor import ModelAdvisor, ModelPlan, ModelRates
from edgedec.runtime.decoding.planner import Drafters, DraftingTeam, Planning, RoundTimings
from edgedec.runtime.drafting.best_first import MAX_PROBABILITY
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import (
    Budget,
    DraftContext,
    Drafter,
    DraftPrompt,
    ModelDrafter,
    ModelDrafting,
    Promise,
    RoundOutcome,
)
from edgedec.runtime.drafting.fusion import fuse
from edgedec.runtime.sessions.passes import Passes
from edgedec.runtime.sessions.sequence import TokenSequence

MAX_NODES = 15
"""One row of sixteen is the anchor; beyond sixteen the cost of a row rises."""

_LONGEST_REST = 2  # rounds a free drafter is not asked whose drafts were wrong
_FREE = Budget(n_nodes=MAX_NODES, depth=MAX_NODES, min_value=0.02)


class Controller:
    """A `Planner` that weighs free drafters, a draft model and plain decoding each round.

    Args:
        costs: Asked for the target's cost table when a round has to be planned; measuring may
            happen then. model_role: what the draft model's cost table is called there.
    """

    name = "auto"

    def __init__(
        self,
        free: Sequence[Drafter],
        costs: CostBook,
        model: ModelDrafter | None = None,
        model_role: str = "draft",
    ) -> None:
        self.drafters = Drafters(free, model)
        self.costs = costs
        self.model_role = model_role
        self._model_rates: ModelRates | None = None
        self.trust = {drafter.name: Trust() for drafter in free}
        self.hidden_layers = self.drafters.hidden_layers

    @property
    def failures(self) -> dict[str, str]:
        return self.drafters.failures

    def model_rates(self, promise: Promise | None) -> ModelRates:
        """Returns what was learned of the model that drafts; at first what it promises."""
        if self._model_rates is None:
            self._model_rates = ModelRates() if promise is None else ModelRates(promise.acceptance)
        return self._model_rates

    def begin(self, prompt: DraftPrompt, target: TokenSequence) -> ControlledPlanning:
        """Returns the part of a new output's request."""
        return ControlledPlanning(self, self.drafters.begin(prompt), target)

    def close(self) -> None:
        self.drafters.close()


class ControlledPlanning(Planning):
    """The rounds of one output."""

    def __init__(self, controller: Controller, team: DraftingTeam, target: TokenSequence) -> None:
        self._controller = controller
        self._team = team
        self._target = target
        self._trust = controller.trust
        self._backoffs = {name: Backoff(1, _LONGEST_REST) for name in controller.trust}
        self._costs: CostTable | None = None
        self._advisor: ModelAdvisor | None = None
        self.log = DecisionLog()
        self._proposed = DraftTree()
        self._decision: Decision | None = None

    @property
    def model(self) -> ModelDrafting | None:
        return None if self._team.model is None else self._team.model.drafting

    def propose(self, context: DraftContext, room: Budget) -> Passes[DraftTree]:
        costs = yield from self._measured_costs()
        tree = self._ask_free(context, room)
        chosen, rate = best_part(tree, costs, 0.0, room.n_nodes)
        plan = yield from self._plan_model(context, room, costs, rate)
        if plan.levels:
            tree = yield from self._ask_model(context, room, costs, plan, tree)
            chosen, rate = best_part(tree, costs, self._drafted_ms(), room.n_nodes)
        self._proposed = reordered(tree, chosen)
        plain = 1.0 / costs.ms(1)
        model = "draft" if self._team.model is None else self._team.model.name
        self._decision = Decision(len(chosen), plan.levels, rate / plain, model)
        return self._proposed.subtree(range(len(chosen)))

    def observe(
        self, context: DraftContext, outcome: RoundOutcome, timings: RoundTimings | None
    ) -> None:
        tree, self._proposed = self._proposed, DraftTree()
        path = tree.matching(outcome.emitted)
        whole = dataclasses.replace(outcome, tree=tree, path=tuple(path))
        self._team.observe(context, whole)
        if timings is None or self._decision is None:
            return
        self._learn(tree, outcome, path, timings)
        n_accepted = len(outcome.path)
        self.log.add(self._decision, n_accepted, timings.draft_ms + timings.verify_ms)

    def end(self, tokens: Sequence[int]) -> None:
        self._team.end(tokens)

    def explain(self) -> list[str]:
        """Returns what was decided how often, and what it promised and brought."""
        return [] if self._costs is None else self.log.lines(1.0 / self._costs.ms(1))

    def _measured_costs(self) -> Passes[CostTable]:
        if self._costs is None:
            self._costs = yield from self._controller.costs.of("target", self._target)
        return self._costs

    def _ask_free(self, context: DraftContext, room: Budget) -> DraftTree:
        budget = dataclasses.replace(_FREE, depth=min(_FREE.depth, room.depth))
        found = []
        for drafting in self._team.free:
            if not self._backoffs[drafting.name].is_over():
                continue
            tree = drafting.propose(context, budget)
            if len(tree):
                found.append(scaled(tree, self._trust[drafting.name].factor))
        return found[0] if len(found) == 1 else fuse(found, budget)

    def _plan_model(
        self, context: DraftContext, room: Budget, costs: CostTable, free_rate: float
    ) -> Passes[ModelPlan]:
        model = self._team.model
        if model is None or model.is_off:
            return ModelPlan()
        if self._advisor is None:
            drafting, controller = model.drafting, self._controller
            promise = drafting.promise
            if promise is None:
                own = yield from controller.costs.of(controller.model_role, drafting.sequence)
            else:
                own = costs.scaled(promise.cost)
            self._advisor = ModelAdvisor(drafting, own, controller.model_rates(promise))
        return self._advisor.plan(context, room, costs, free_rate)

    def _ask_model(
        self,
        context: DraftContext,
        room: Budget,
        costs: CostTable,
        plan: ModelPlan,
        free: DraftTree,
    ) -> Passes[DraftTree]:
        """Returns the draft model's tree with the free drafters' hung in."""
        assert self._advisor is not None
        assert self._team.model is not None
        budget = self._advisor.budget(plan, room, costs, 2 * MAX_NODES)
        tree = yield from self._team.model.propose(context, budget)
        return fuse([tree, free], budget) if len(free) and len(tree) else tree

    def _drafted_ms(self) -> float:
        return 0.0 if self._advisor is None else self._advisor.drafted_ms

    def _learn(
        self, tree: DraftTree, outcome: RoundOutcome, path: list[int], timings: RoundTimings
    ) -> None:
        assert self._decision is not None
        assert self._costs is not None
        n_verified = self._decision.n_nodes
        self._costs.observe(n_verified + 1, timings.verify_ms)
        accepted = set(path)
        tested = set()
        for i in (ROOT, *path):
            for child in tree.children(i):
                node = tree.nodes[child]
                if (trust := self._trust.get(node.origin)) is not None:
                    trust.observe(node.probability / trust.factor, child in accepted)
                    tested.add(node.origin)
        right = {tree.nodes[i].origin for i in path}
        for name, trust in self._trust.items():
            if name not in tested:
                trust.forget()
            elif name in right:
                self._backoffs[name].reset()
            else:
                self._backoffs[name].lost()
        if self._advisor is None:
            return
        plain_ms = len(outcome.emitted) * self._costs.ms(1)
        if self._decision.n_levels:
            took_ms = timings.verify_ms + self._advisor.drafted_ms
            self._advisor.learn(len(path), plain_ms / took_ms)
        else:
            self._advisor.learn_without(plain_ms / timings.verify_ms)


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
