"""The planner of method `auto`: drafts as much as pays on this device and this text, or nothing.

Each round it maximises expected tokens per millisecond. Free drafters always propose; nodes are
taken in the order of their chance while the next one earns more than its row costs (goodput,
SmartSpec section 4; knee rule over a tree by value, DySpec section 4 and Sequoia section 4.2). A
draft model is asked when its expected levels, at their measured acceptance and its measured step
time, beat what the free drafters promise; it stops by itself once the next level is not worth its
step. Estimates are corrected by what was accepted of late, so a change of text shows within a few
rounds; proposals that were not verified are compared with the emitted text all the same, which
costs nothing, and a draft model that lost is tried again at growing distances. Free drafters that
save less time than they take rest; while all do, rounds are plain decoding. Where other texts
share the passes, a further row costs what it adds to a pass over all their rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from edgedec.runtime.decoding.acceptance_rates import Backoff, Trust
from edgedec.runtime.decoding.asking import AskingCost, Askings
from edgedec.runtime.decoding.cost_book import CostBook
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.decoding.decisions import Decision, DecisionLog
from edgedec.runtime.decoding.model_advisor import ModelPlan, ModelRates
from edgedec.runtime.decoding.model_choice import ModelChoice
from edgedec.runtime.decoding.mtp_backoff import MtpBackoff
from edgedec.runtime.decoding.planner import Drafters, DraftingTeam, Planning, RoundTimings
from edgedec.runtime.drafting.best_first import MAX_PROBABILITY
from edgedec.runtime.drafting.compiled import CompiledDrafter, CompiledTeam
from edgedec.runtime.drafting.draft_cost import Promise
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import (
    Budget,
    DraftContext,
    Drafter,
    DraftPrompt,
    ModelDrafter,
    ModelDrafting,
    RoundOutcome,
)
from edgedec.runtime.drafting.fusion import fuse
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.rows import ALONE, Company, Rows
from edgedec.runtime.sequences.sequence import TokenSequence

MTP = "mtp"
"""Name of the drafter whose drafts come with passes."""

TEAM = ""
"""What the compiled drafters are asked as, all together."""

GRAMMAR = "grammar"
"""Name of the drafter that has nothing to say without a grammar."""

MAX_NODES = 15
"""One row of sixteen is the anchor; beyond sixteen the cost of a row rises."""

_LONGEST_REST = 2  # rounds a free drafter is not asked whose drafts were wrong
_LEAST_VALUE = 0.02  # of a node that a free drafter proposes
_COMPANY_RATE = 0.3  # at which the latest pass changes what is expected to share the next one
_LEAST_COMPANY = 0.1  # texts: with fewer beside it, a text counts as being alone
_MOST_ROWS = 64  # of others: a pass that reads so much of a prompt says little of others
_LOOK_ROUND = 8  # rounds, every so many of which what is not worth a row is proposed, too
_PLAIN = Decision(0, 0, 1.0)

_Weighed = tuple[DraftTree, int, float]
"""Drafts, how many of the first are worth a row, and tokens per millisecond if those are taken."""


class AutoPlanner:
    """A `Planner` that weighs free drafters, models that draft and plain decoding each round.

    Args:
        costs: Asked for cost tables when a round has to be planned; measuring may happen then.
        models: By the roles that their costs are kept under.
        mtp_share: of a pass over one row that light heads in the model's graph take.
        name: What users call the method.
    """

    def __init__(
        self,
        free: Sequence[Drafter],
        costs: CostBook,
        models: Mapping[str, ModelDrafter] | None = None,
        mtp_share: float = 0.0,
        name: str = "auto",
    ) -> None:
        self.name = name
        self.mtp_share = mtp_share
        compiled = [drafter for drafter in free if isinstance(drafter, CompiledDrafter)]
        others = [drafter for drafter in free if not isinstance(drafter, CompiledDrafter)]
        self.team = CompiledTeam(compiled) if compiled else None
        self.drafters = Drafters(others, tuple((models or {}).values()))
        self.costs = costs
        self._roles = tuple(models or ())
        self._model_rates: dict[str, ModelRates] = {}
        self.trust = {drafter.name: Trust() for drafter in others}
        # What heads in the model take is a share of its passes: `MtpBackoff` weighs that.
        asked = [TEAM, *(drafter.name for drafter in others if drafter.name != MTP)]
        self.asking_costs = {name: AskingCost() for name in asked}
        layers = {layer for drafter in compiled for layer in drafter.hidden_layers}
        self.hidden_layers = tuple(sorted(layers.union(self.drafters.hidden_layers)))

    @property
    def failures(self) -> dict[str, str]:
        return self.drafters.failures

    def model_rates(self, role: str, promise: Promise | None) -> ModelRates:
        """Returns what was learned of a model that drafts; at first what it promises."""
        if role not in self._model_rates:
            first = ModelRates() if promise is None else ModelRates(promise.acceptance)
            self._model_rates[role] = first
        return self._model_rates[role]

    def begin(
        self,
        prompt: DraftPrompt,
        target: TokenSequence,
        clock: Callable[[], float] = time.perf_counter,
    ) -> AutoPlanning:
        """Returns the part of a new output's request."""
        team = self.drafters.begin(prompt)
        begun = {drafting.name: drafting for drafting in team.models}
        names = [drafter.name for drafter in self.drafters.models]
        models = [
            (role, begun[name])
            for role, name in zip(self._roles, names, strict=True)
            if name in begun
        ]
        choice = ModelChoice(models, self.costs, self.model_rates, clock)
        if not prompt.has_grammar:
            team = replace(team, free=[one for one in team.free if one.name != GRAMMAR])
        if self.team is not None:
            team = replace(team, together=self.team.begin(prompt))
        return AutoPlanning(self, team, choice, target, clock)

    def close(self) -> None:
        self.drafters.close()


class AutoPlanning(Planning):
    """The rounds of one output."""

    def __init__(
        self,
        planner: AutoPlanner,
        team: DraftingTeam,
        choice: ModelChoice,
        target: TokenSequence,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(team)
        self._planner = planner
        self._together = team.together
        self._choice = choice
        self._plan = ModelPlan()
        self._target = target
        self._askings = Askings(clock)
        for drafting in team.free:
            if (cost := planner.asking_costs.get(drafting.name)) is not None:
                self._askings.add(drafting.name, cost, (drafting.name,))
        if (together := planner.team) is not None:
            self._askings.add(TEAM, planner.asking_costs[TEAM], together.names)
        self._can_rest = not team.models and not planner.mtp_share
        self._trust = {one.name: planner.trust[one.name] for one in team.free}
        self._backoffs = {name: Backoff(1, _LONGEST_REST) for name in self._trust}
        self._costs: CostTable | None = None
        self._own_costs: CostTable | None = None  # where others share the passes
        self._beside = Beside()
        self._n_asked = 0
        self._mtp = MtpBackoff(planner.mtp_share)
        self.log = DecisionLog()
        self._proposed = DraftTree()
        self._drafted = DraftTree()  # by the model, whatever of it was proposed
        self._decision: Decision | None = None

    @property
    def model(self) -> ModelDrafting | None:
        return self._choice.drafting

    @property
    def wants_mtp(self) -> bool:
        return self._mtp.is_asking

    @property
    def is_resting(self) -> bool:
        return self._can_rest and self._askings.are_off

    def rested(self, rows: Rows) -> None:
        assert self._costs is not None
        self._askings.rested()
        self.log.add(_PLAIN, 0, self._costs.ms(1))
        self._count_pass(rows.company, 1, 1, rows.ms)

    def propose(self, context: DraftContext, room: Budget) -> Passes[DraftTree]:
        if self._costs is None:
            if self._planner.costs.is_measuring("target"):
                return DraftTree()
            self._costs = yield from self._planner.costs.of("target", self._target)
        self._askings.begin()
        costs = self._own_costs = self._beside.costs(self._costs)
        tree, n_paying, rate = self._ask_free(context, room, costs)
        self._askings.pause()
        if self.team.models:
            tree, n_paying, rate = yield from self._ask_model(
                context, room, costs, (tree, n_paying, rate)
            )
        self._proposed = tree
        plain = 1.0 / costs.ms(1)
        self._decision = Decision(n_paying, self._plan.levels, rate / plain, self._choice.name)
        return tree.beginning(n_paying)

    def observe(
        self, context: DraftContext, outcome: RoundOutcome, timings: RoundTimings | None
    ) -> None:
        self._askings.resume()
        tree, self._proposed = self._proposed, DraftTree()
        if self._together is not None:
            self._askings.observe(TEAM, self._together, context, outcome)
        path: list[int] = []
        if self._trust or self.team.models:
            if self._decision is not None and len(outcome.tree) != self._decision.n_nodes:
                tree = led_by(outcome.tree, tree)  # not all was fit to be verified
            path = tree.matching(outcome.emitted)
            whole = replace(outcome, tree=tree, path=tuple(path))
            for drafting in self.team.free:
                self._askings.observe(drafting.name, drafting, context, whole)
            for model in self.team.models:
                model.observe(context, whole)
        if timings is None or self._decision is None or self._own_costs is None:
            return
        self._learn(tree, outcome, path, timings)
        if context.mask is None:
            self._askings.weigh(outcome, self._own_costs, self._can_rest)

    def explain(self) -> list[str]:
        """Returns what was decided how often, and what it promised and brought."""
        return [] if self._costs is None else self.log.lines(1.0 / self._costs.ms(1))

    def _ask_free(self, context: DraftContext, room: Budget, costs: CostTable) -> _Weighed:
        """Returns what free drafters propose, most of the time only what may pay for its row.

        How far they can be believed is learned from all they propose: where nothing is likely
        any more, a look now and then shows that something is again.
        """
        if not self.team.free:
            return self._ask_together(context, room, costs, is_whole=bool(self.team.models))
        self._n_asked += 1
        is_look = self._n_asked % _LOOK_ROUND == 0
        least = _LEAST_VALUE if is_look else max(_LEAST_VALUE, costs.row_share)
        budget = Budget(MAX_NODES, min(MAX_NODES, room.depth), min_value=least)
        found = []
        for drafting in self.team.free:
            is_on = self._is_on(drafting.name, context)
            if not (is_on and self._backoffs[drafting.name].is_over()):
                continue
            factor = self._trust[drafting.name].factor
            own = budget if is_look else Budget(MAX_NODES, budget.depth, least / factor)
            tree = self._askings.ask(drafting.name, partial(drafting.propose, context, own))
            if len(tree):
                found.append(tree.scaled(factor, MAX_PROBABILITY))
        is_whole = bool(found or self.team.models)
        together = self._ask_together(context, room, costs, is_whole=is_whole)
        if not found:
            return together
        if len(together[0]):
            found.insert(0, together[0])
        tree = found[0] if len(found) == 1 else fuse(found, budget)
        return weighed_by(costs, tree, 0.0, room.n_nodes)

    def _ask_together(
        self, context: DraftContext, room: Budget, costs: CostTable, *, is_whole: bool
    ) -> _Weighed:
        """Returns what the compiled drafters propose. is_whole: with what does not pay."""
        together = self._together
        if together is None or not self._is_on(TEAM, context):
            return DraftTree(), 0, 1.0 / costs.ms(1)
        return self._askings.ask(
            TEAM, lambda: together.propose(context, room, costs.compiled(), is_whole=is_whole)
        )

    def _is_on(self, name: str, context: DraftContext) -> bool:
        """Whether to ask a drafter; under a grammar always.

        What a grammar leaves no choice about is known in its place alone.
        """
        return context.mask is not None or self._askings.is_on(name)

    def _ask_model(
        self, context: DraftContext, room: Budget, costs: CostTable, free: _Weighed
    ) -> Passes[_Weighed]:
        """Returns what to propose where a model may draft. free: what the others propose."""
        assert self._costs is not None
        tree, _, rate = free
        plan = yield from self._choice.plan(context, room, costs, rate, self._costs)
        self._plan, self._drafted = plan, DraftTree()
        if not plan.levels:
            return free
        self._drafted, budget = yield from self._choice.propose(
            context, room, costs, plan, 2 * MAX_NODES
        )
        both = len(tree) and len(self._drafted)
        tree = fuse([self._drafted, tree], budget) if both else self._drafted
        return weighed_by(costs, tree, self._choice.drafted_ms, room.n_nodes)

    def _count_pass(self, company: Company, n_emitted: int, n_rows: int, ms: float) -> None:
        """Learns what a pass took and who shared it."""
        assert self._costs is not None
        self._beside.observe(company, n_emitted)
        if company == ALONE:  # other passes say nothing of what the smallest ones take
            self._costs.observe(n_rows, ms)

    def _learn(
        self, tree: DraftTree, outcome: RoundOutcome, path: list[int], timings: RoundTimings
    ) -> None:
        assert self._decision is not None
        assert self._costs is not None
        assert self._own_costs is not None
        n_emitted, plain_ms = len(outcome.emitted), self._own_costs.ms(1)
        verify_ms = self._beside.own_ms(timings.verify_ms, self._costs, plain_ms)
        scale = self._costs.ms(1) / plain_ms  # the log compares with plain decoding alone
        all_ms = scale * (timings.draft_ms + verify_ms)
        self.log.add(self._decision, len(outcome.path), all_ms)
        self._count_pass(timings.company, n_emitted, len(outcome.tree) + 1, timings.verify_ms)
        if self._trust:
            self._learn_trust(tree, path)
        if self._planner.mtp_share:
            nodes = outcome.tree.nodes
            n_right = sum(nodes[i].origin == MTP for i in outcome.path)
            n_drafted = sum(node.origin == MTP for node in nodes)
            self._mtp.observe(n_right - self._own_costs.row_share * n_drafted, n_emitted)
        if self.team.models:
            n_held = len(self._drafted.matching(outcome.emitted))
            self._choice.learn(self._plan, n_held, n_emitted, plain_ms, verify_ms)

    def _learn_trust(self, tree: DraftTree, path: list[int]) -> None:
        """Learns how far drafters can be believed that are not in the compiled team."""
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


class Beside:
    """What is expected to share the passes of one text, from the passes before."""

    def __init__(self) -> None:
        self._n_texts = self._n_rows = 0.0
        self._n_emitted = 1.0  # by this text in a pass; others are taken to do as well

    def observe(self, company: Company, n_emitted: int) -> None:
        """Takes in what shared a pass, and how many tokens the text got from it."""
        self._n_texts += _COMPANY_RATE * (company.n_texts - self._n_texts)
        self._n_rows += _COMPANY_RATE * (min(company.n_rows, _MOST_ROWS) - self._n_rows)
        self._n_emitted += _COMPANY_RATE * (n_emitted - self._n_emitted)

    def costs(self, table: CostTable) -> CostTable:
        """Returns what passes cost this text. table: what they cost if nobody shares them."""
        if self._n_texts < _LEAST_COMPANY:
            return table
        return table.shared(self._n_rows, self._n_texts * self._n_emitted)

    def own_ms(self, ms: float, table: CostTable, plain_ms: float) -> float:
        """Returns this text's part of a pass that took ``ms``.

        plain_ms: its part of a pass in which it drafts nothing.
        """
        if self._n_texts < _LEAST_COMPANY:
            return ms
        return max(ms - (table.ms(round(self._n_rows) + 1) - plain_ms), plain_ms / 2)


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


def weighed_by(costs: CostTable, tree: DraftTree, spent_ms: float, n_nodes: int) -> _Weighed:
    """Returns ``tree`` with its best part first; see `best_part`."""
    chosen, rate = best_part(tree, costs, spent_ms, n_nodes)
    return reordered(tree, chosen), len(chosen), rate


def led_by(first: DraftTree, tree: DraftTree) -> DraftTree:
    """Returns the nodes of ``first``, as they are there, and behind them what else ``tree`` has."""
    result = DraftTree()
    for part in (first, tree):
        index_of = {ROOT: ROOT}
        for i, node in enumerate(part.nodes):
            parent = index_of[node.parent]
            index_of[i] = result.add(node.token, parent, node.probability, node.origin)
    return result


def reordered(tree: DraftTree, first: Sequence[int]) -> DraftTree:
    """Returns ``tree`` with the ``first`` nodes, closed under parents, before all others."""
    chosen = sorted(first)
    if chosen == list(range(len(chosen))):
        return tree
    rest = sorted(set(range(len(tree))) - set(chosen))
    result, index_of = DraftTree(), {ROOT: ROOT}
    for i in (*chosen, *rest):
        node = tree.nodes[i]
        parent = index_of[node.parent]
        index_of[i] = result.add(node.token, parent, node.probability, node.origin)
    return result
