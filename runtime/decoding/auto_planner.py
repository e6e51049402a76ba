"""The planner of method `auto`: asks drafters, and drafts as `draft_length` decides, or nothing.

Free drafters are asked while that saves time; a model drafts where its levels promise more than
they did without it. Proposals that were not verified are compared with the emitted text all the
same, which costs nothing. While nothing is to be asked, rounds are plain decoding. Where other
texts share the passes, a further row costs what it adds to a pass over all their rows.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edgedec.runtime.decoding.cost_book import TARGET, CostBook
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.decoding.decisions import Decision, DecisionLog
from edgedec.runtime.decoding.draft_length import (
    ASKING_STAKE,
    HORIZON,
    LENT,
    LEVELS,
    MAX_NODES,
    NOTHING_PAYS,
    PRIOR,
    PURSE,
    STAKE,
    DepthAcceptance,
    Draft,
    Evidence,
    Ledger,
    Levels,
    ModelCosts,
    Worth,
    levels,
    verified,
)
from edgedec.runtime.decoding.planner import Drafters, DraftingTeam, Planning, RoundTimings
from edgedec.runtime.drafting.compiled import CompiledDrafter, CompiledTeam
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import (
    Budget,
    DraftContext,
    Drafter,
    DraftPrompt,
    ModelDrafter,
    ModelDrafting,
    RoundOutcome,
    Unread,
)
from edgedec.runtime.drafting.fusion import UNLIKELY, fuse
from edgedec.runtime.drafting.isolation import IsolatedModelDrafting
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.prefill import PREFILL_CHUNK
from edgedec.runtime.sequences.rows import ALONE, OtherTexts, Rows

if TYPE_CHECKING:
    from edgedec.runtime.decoding.shared_throughput import SharedText, SharedThroughput

MTP = "mtp"
"""Name of the drafter whose drafts come with passes."""

TEAM = ""
"""What the compiled drafters are asked as, all together."""

GRAMMAR = "grammar"
"""Name of the drafter that has nothing to say without a grammar."""

REWRITE = "rewrite"
"""Name of the drafter that has nothing to say where a request predicts no text."""

_COMPANY_RATE = 0.3  # at which the latest pass changes what is expected to share the next one
_MIN_COMPANY = 0.1  # texts: with fewer beside it, a text counts as being alone
_MAX_ROWS = 64  # of others: a pass that reads so much of a prompt says little of others
_PLAIN = Decision(0, 0, 1.0, reason="drafters rest")
_UNKNOWN = Decision(0, 0, 1.0, reason="first passes")
_SHARED = Decision(0, 0, 1.0, reason="drafters rest under load")


class ModelKnowledge:
    """What all requests know of a model that drafts. step_ms: of a level, 0 before any."""

    def __init__(self, acceptance: float) -> None:
        self.acceptance = DepthAcceptance(acceptance)
        self.predicted = DepthAcceptance(acceptance)  # where its rows of the text are predictions
        self.step_ms = 0.0

    def learn_step(self, ms: float) -> None:
        """Takes in what a level took."""
        rate = 0.1 if self.step_ms else 1.0
        self.step_ms += rate * (ms - self.step_ms)


class AutoPlanner:
    """A `Planner` that weighs free drafters, models that draft and plain decoding each round.

    Args:
        costs: Asked for cost tables when a text begins, or a model may draft.
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
        self.roles = tuple(models or ())
        self.knowledge: dict[str, ModelKnowledge] = {}
        self.credits: dict[str, float] = {}  # plain steps, by prefix group
        compiled_names = () if self.team is None else self.team.names
        names = (*(drafter.name for drafter in others), *compiled_names)
        self.trust = {name: Evidence(1.0) for name in names}
        self.under_way: weakref.WeakSet[AutoPlanning] = weakref.WeakSet()
        self.known_worth: dict[str, Worth] = {}  # at the end of the latest text, by who is asked
        layers = {layer for drafter in compiled for layer in drafter.hidden_layers}
        self.hidden_layers = tuple(sorted(layers.union(self.drafters.hidden_layers)))

    @cached_property
    def throughput(self) -> SharedThroughput:
        """What texts that share passes need. One text alone does not import it."""
        from edgedec.runtime.decoding.shared_throughput import SharedThroughput

        return SharedThroughput()

    @property
    def is_resting(self) -> bool:
        n_others = len(self.under_way)
        return n_others > 0 and not self.throughput.may_lend(n_others + 1)

    @property
    def failures(self) -> dict[str, str]:
        return self.drafters.failures

    def begin(
        self,
        prompt: DraftPrompt,
        clock: Callable[[], float] = time.perf_counter,
    ) -> AutoPlanning:
        """Returns the part of a new output's request."""
        return AutoPlanning(self, prompt, clock)

    def begin_among(self, n_others: int) -> SharedText:
        """Returns the account of a text that shares passes with so many others."""
        from edgedec.runtime.decoding.shared_throughput import SharedText

        return SharedText(self.throughput, n_others + 1)

    def begin_team(self, prompt: DraftPrompt) -> DraftingTeam:
        """Returns the parts of the drafters in a new output's request."""
        team = self.drafters.begin(prompt)
        silent = {GRAMMAR: not prompt.has_grammar, REWRITE: not prompt.prediction}
        team = replace(
            team, free=[drafter for drafter in team.free if not silent.get(drafter.name)]
        )
        return team if self.team is None else replace(team, together=self.team.begin(prompt))

    def worth(self, name: str, is_one_of_many: bool = False) -> Worth:
        """Returns whether asking a drafter is worth it where another text begins.

        What earlier texts say counts half, as texts differ. Many short ones are parts of one.
        """
        known = self.known_worth.get(name)
        if known is None:
            return Worth()
        return Worth(known.cost, known.purse if is_one_of_many else (known.purse + PURSE) / 2)

    def close(self) -> None:
        self.drafters.close()


@dataclass
class _Model:
    """A model that drafts, in one request."""

    role: str
    drafting: IsolatedModelDrafting
    costs: CostTable
    knowledge: ModelKnowledge
    acceptance: DepthAcceptance
    predicted: DepthAcceptance

    @property
    def step_ms(self) -> float:
        """What a level takes."""
        return self.knowledge.step_ms or self.costs.ms(1)

    def takes(self, n_missing: int) -> ModelCosts:
        """Returns what asking it takes where it has yet to read ``n_missing`` tokens."""
        row_ms = self.costs.row_ms_of_many
        return ModelCosts(self.step_ms + max(n_missing - 1, 0) * row_ms, self.step_ms)


class AutoPlanning(Planning):
    """The rounds of one output."""

    def __init__(
        self,
        planner: AutoPlanner,
        prompt: DraftPrompt,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(DraftingTeam([], []))
        self._planner, self._clock = planner, clock
        self._prompt, self._group = prompt, prompt.group
        self._trust: dict[str, Evidence] = {}
        self._worth: dict[str, Worth] = {}
        self._free: list[tuple[str, Any]] = []
        self._asked_ms: dict[str, float] = {}  # milliseconds, of those asked in this round
        self._models: list[_Model] | None = None
        self._model: _Model | None = None  # that drafted in this round
        self._shown: IsolatedModelDrafting | None = None  # that drafted last
        self._held: DepthAcceptance | None = None
        self._ledger = Ledger(
            planner.credits.get(self._group, 0.0), LENT if prompt.is_one_of_many else 0.0
        )
        self._free_ledger = Ledger()  # of rounds in which no model drafted
        self._costs = planner.costs.of(TARGET)
        self._own_costs: CostTable | None = None  # where others share the passes
        n_others = len(planner.under_way)
        self._sharing = SharingEstimate(n_others)
        self._shared: SharedText | None = planner.begin_among(n_others) if n_others else None
        self._rests_with_others = self._shared is not None and not self._shared.is_drafting
        planner.under_way.add(self)
        self._proposed = self._drafted = DraftTree()
        self._decision: Decision | None = None
        self._asking_ms = self._had_mtp = 0.0
        self.log = DecisionLog()
        self._ended_s = 0.0  # when the latest round did, by the text's own clock
        self._model_ms = 0.0  # of this round, in which a model drafted
        self._has_team = False
        if not self._rests_with_others:
            self._begin_team(prompt)

    @property
    def model(self) -> ModelDrafting | None:
        return None if self._shown is None else self._shown.drafting

    @property
    def wants_mtp(self) -> bool:
        return self._planner.mtp_share > 0 and MTP in self._worth and self._is_worth(MTP)

    def _begin_team(self, prompt: DraftPrompt) -> None:
        planner = self._planner
        self._has_team = True
        team = self.team = planner.begin_team(prompt)
        self._shown = next(iter(team.models), None)
        self._trust = {name: Evidence(trust.rate) for name, trust in planner.trust.items()}
        self._free = [(drafter.name, drafter) for drafter in team.free]
        if team.together is not None:
            self._free.append((TEAM, team.together))
        self._worth = {name: planner.worth(name, prompt.is_one_of_many) for name, _ in self._free}
        if MTP in self._worth:
            self._worth[MTP].cost = planner.mtp_share

    @property
    def is_resting(self) -> bool:
        if self._rests_with_others:
            return True
        if not self._has_team or self.team.models or self._had_mtp or self.wants_mtp:
            return False
        return not any(self._is_worth(name) for name in self._worth if name != MTP)

    def _may_ask(self, cost: float) -> bool:
        """Whether what asking takes may be lost. Units: plain steps."""
        if self._own_costs is None or self._sharing.n_texts >= 1:
            return True
        step_ms = self._own_costs.ms(1)
        return (1 + cost) * step_ms <= self._allowance(step_ms, ASKING_STAKE)

    def _max_ms(self, costs: CostTable) -> float:
        """Returns what the round may take; among others what all lose is bounded in its place."""
        if self._sharing.n_texts >= 1:
            return math.inf
        return self._ledger.allowance(costs.ms(1), STAKE)

    def _max_free_ms(self, costs: CostTable, max_ms: float) -> float:
        """Returns what the round may take if no model drafts in it."""
        return max(max_ms, self._free_ledger.allowance(costs.ms(1), ASKING_STAKE))

    def _allowance(self, step_ms: float, stake: float) -> float:
        """Returns what a round of the free drafters may take. What models lost forbids none."""
        ledgers = self._ledger, self._free_ledger
        return max(ledger.allowance(step_ms, stake) for ledger in ledgers)

    def _is_worth(self, name: str) -> bool:
        """Whether asking a drafter saves more than it takes, and may be lost."""
        worth = self._worth[name]
        return worth.is_positive and self._may_ask(worth.cost)

    def rested(self, rows: Rows) -> None:
        if self._rests_with_others:
            self.log.add(_SHARED, 0, rows.ms)
            self._end_round(rows.company, 1, 0, rows.ms)
            return
        step_ms = self._sharing.plain_ms(self._costs)
        self._rest()
        for ledger in (self._ledger, self._free_ledger):
            ledger.add(1, step_ms, step_ms)
        self.log.add(_PLAIN, 0, self._costs.ms(1))
        self._count_pass(rows.company, 1, 1, rows.ms)

    def propose(self, context: DraftContext, room: Budget) -> Passes[DraftTree]:
        if not self._has_team:
            self._begin_team(replace(self._prompt, tokens=[*context.tokens[:-1]], hidden={}))
        began_s = self._clock()
        costs = self._own_costs = self._sharing.costs(self._costs)
        self._asked_ms, self._model, self._asking_ms, self._model_ms = {}, None, 0.0, 0.0
        if not self._costs.has_scale:
            self._had_mtp = 0.0
            self._decision = _UNKNOWN
            return DraftTree()
        max_ms = self._max_ms(costs)
        tree = self._ask_free(context, room, costs)
        max_free_ms = self._max_free_ms(costs, max_ms)
        draft = verified(tree.nodes, self._trust, costs, 0.0, max_free_ms, room.n_nodes)
        plan = Levels(0, draft.rate, NOTHING_PAYS)
        if self.team.models:
            plan = self._plan_model(context, room, costs, draft, max_ms)
        if self._model is not None:
            tree, draft = yield from self._ask_model(context, room, costs, plan, tree, max_ms)
        self._had_mtp = self._planner.mtp_share if self.wants_mtp else 0.0
        self._proposed = tree
        name = "" if self._model is None else self._model.drafting.name
        gain = draft.rate * costs.ms(1)
        reason = draft.reason if draft.n_nodes or plan.n else plan.reason
        self._decision = Decision(draft.n_nodes, plan.n, gain, name, reason)
        self._asking_ms = 1000 * (self._clock() - began_s)
        return tree.beginning(draft.n_nodes)

    def observe(
        self, context: DraftContext, outcome: RoundOutcome, timings: RoundTimings | None
    ) -> None:
        began_s = self._clock()
        for name, drafting in self._free:
            has_said = name == MTP and self._had_mtp
            if has_said or name in self._asked_ms or self._is_worth(name):
                one_s = self._clock()
                drafting.observe(context, outcome)
                if name in self._asked_ms:
                    self._asked_ms[name] += 1000 * (self._clock() - one_s)
        for model in self.team.models:
            model.observe(context, outcome)
        if timings is not None and self._decision is not None and self._own_costs is not None:
            self._learn(context, outcome, timings, 1000 * (self._clock() - began_s))
        else:
            self._ended_s = 0.0
        self._proposed = self._drafted = DraftTree()
        self._decision = None

    def end(self) -> None:
        """The output ended: what it saved or lost is the next requests'."""
        self._planner.under_way.discard(self)
        if self._shared is not None:
            self._shared.end()
        for role in (TARGET, *self._planner.roles):
            self._planner.costs.keep(role)
        self._planner.known_worth.update(self._worth)
        credits, ledger = self._planner.credits, self._ledger
        saved = (ledger.plain_ms - ledger.spent_ms) / self._costs.ms(1)
        credits[self._group] = min(max(credits.get(self._group, 0.0) + saved, 0.0), HORIZON)

    def explain(self) -> list[str]:
        """Returns what was decided how often, and what it promised and brought."""
        return self.log.lines(1.0 / self._costs.ms(1))

    def explain_rounds(self) -> list[str]:
        """Returns what was decided in each round, and why."""
        return self.log.round_lines()

    def _ask_free(self, context: DraftContext, room: Budget, costs: CostTable) -> DraftTree:
        """Returns what the free drafters propose that are worth asking; under a grammar all are.

        What a grammar leaves no choice about is known in its place alone.
        """
        row = (costs.ms(3) / costs.ms(1) - 1) / 2  # what is worth less will hardly pay for itself
        budget = Budget(MAX_NODES, min(MAX_NODES, room.depth), min_value=max(UNLIKELY, row / 2))
        trees = []
        for name, drafting in self._free:
            has_said = name == MTP and self._had_mtp
            if not (has_said or context.mask is not None or self._is_worth(name)):
                continue
            began_s = self._clock()
            tree = drafting.propose(context, budget)
            self._asked_ms[name] = 1000 * (self._clock() - began_s)
            if len(tree):
                trees.append(tree if name == TEAM else by_value(tree))
        return trees[0] if len(trees) == 1 else fuse(trees, budget) if trees else DraftTree()

    def _plan_model(
        self, context: DraftContext, room: Budget, costs: CostTable, draft: Draft, max_ms: float
    ) -> Levels:
        """Returns how deep which model is to draft, which `_model` is then."""
        if self._models is None:
            self._models = self._open_models()
        best = Levels(0, draft.rate, NOTHING_PAYS)
        for model in self._models:
            if model.drafting.is_off:
                continue
            unread = model.drafting.drafting.unread(context.tokens)
            plan, held = self._levels(model, unread.n_missing, costs, max_ms, room, best.rate)
            if unread.n_predicted:
                plan, held = self._with_predicted(model, unread, costs, max_ms, room, plan)
            if plan.n and plan.rate > best.rate:
                best, self._model, self._held = plan, model, held
            elif not best.n:
                best = replace(best, reason=plan.reason)
        return best

    def _levels(
        self,
        model: _Model,
        n_missing: int,
        costs: CostTable,
        max_ms: float,
        room: Budget,
        rate: float,
    ) -> tuple[Levels, DepthAcceptance]:
        n_left, takes = min(room.depth, room.n_nodes), model.takes(n_missing)
        return levels(model.acceptance, takes, costs, max_ms, n_left, rate), model.acceptance

    def _with_predicted(
        self,
        model: _Model,
        unread: Unread,
        costs: CostTable,
        max_ms: float,
        room: Budget,
        exact: Levels,
    ) -> tuple[Levels, DepthAcceptance]:
        """Returns a plan for a text that was predicted for a model, which may be computed first.

        It is where that is permitted, and saves more over what may be left of the text.
        """
        n_left, takes = min(room.depth, room.n_nodes), model.takes(unread.n_missing)
        known = levels(model.predicted, takes, costs, max_ms, n_left, 1 / costs.ms(1))
        read_ms = unread.n_predicted * model.costs.row_ms_of_many
        saved_ms = room.depth * (1 / known.rate - 1 / exact.rate) if exact.n else 0.0
        if saved_ms > read_ms and read_ms + costs.ms(1) <= max_ms:
            model.drafting.drafting.read_exactly()
            return exact, model.acceptance
        return known, model.predicted

    def _open_models(self) -> list[_Model]:
        names = [drafter.name for drafter in self._planner.drafters.models]
        roles = dict(zip(names, self._planner.roles, strict=True))
        models = []
        for drafting in self.team.models:
            role = roles[drafting.name]
            table = self._planner.costs.of(role)
            known = self._planner.knowledge.setdefault(role, ModelKnowledge(PRIOR))
            drafting.price(table.row_ms_of_many, self._costs.ms(1))
            of_text = (DepthAcceptance(general=g) for g in (known.acceptance, known.predicted))
            models.append(_Model(role, drafting, table, known, *of_text))
        return models

    def _ask_model(
        self,
        context: DraftContext,
        room: Budget,
        costs: CostTable,
        plan: Levels,
        tree: DraftTree,
        max_ms: float,
    ) -> Passes[tuple[DraftTree, Draft]]:
        """Returns what to propose where a model drafts. tree: what the others propose."""
        model = self._model
        assert model is not None
        self._shown = model.drafting
        row_ms = (costs.ms(8) - costs.ms(1)) / 7
        budget = Budget(
            n_nodes=min(2 * MAX_NODES, room.n_nodes),
            depth=min(self._deepest(model, costs, plan, max_ms), room.depth),
            min_value=0.5 * row_ms * plan.rate,
            min_step_value=min((model.step_ms + row_ms) * plan.rate, 0.95),
            n_step_nodes=2,
        )
        began_s = self._clock()
        self._drafted = yield from model.drafting.propose(context, budget)
        ms = self._model_ms = 1000 * (self._clock() - began_s)
        cost = model.drafting.drafting.passes.cost
        cost.takes_in_all(ms)
        if 0 < cost.n_fed <= PREFILL_CHUNK:
            model.costs.observe(cost.n_fed, cost.feed_ms)
        n_usual = 0 < cost.n_fed <= 2
        if n_steps := cost.n_levels + n_usual:
            model.knowledge.learn_step(
                (cost.level_ms + n_usual * cost.feed_ms + cost.other_ms) / n_steps
            )
        both = len(tree) and len(self._drafted)
        if both:
            tree = fuse([self._drafted, tree], budget)
        elif len(self._drafted):
            tree = by_value(self._drafted)
        return tree, verified(tree.nodes, self._trust, costs, ms, max_ms, room.n_nodes)

    def _deepest(self, model: _Model, costs: CostTable, plan: Levels, max_ms: float) -> int:
        """Returns how many levels are permitted: drafts that look sure go beyond the plan."""
        spent_ms = model.takes(0).ms(plan.n) + costs.ms(plan.n + 1)
        further = (max_ms - spent_ms) / (model.step_ms + costs.ms(2) - costs.ms(1))
        return max(plan.n, min(plan.n + int(max(further, 0.0)), 2 * plan.n, LEVELS))

    def _learn(
        self, context: DraftContext, outcome: RoundOutcome, timings: RoundTimings, ms: float
    ) -> None:
        assert self._decision is not None
        assert self._own_costs is not None
        costs, n_emitted = self._own_costs, len(outcome.emitted)
        step_ms = costs.ms(1)
        verify_ms = self._sharing.own_ms(timings.verify_ms, self._costs, step_ms)
        n_rows = len(outcome.tree) + 1
        asked_ms = self._asking_ms + ms
        pass_ms = costs.ms(n_rows) + self._had_mtp * step_ms
        self._ledger.add(n_emitted, pass_ms + max(asked_ms, 0.0), step_ms)
        if self._model is None:
            free_ms = sum(self._asked_ms.values()) if self.team.models else asked_ms
            self._free_ledger.add(n_emitted, pass_ms + max(free_ms, 0.0), step_ms)
        self.log.add(
            self._decision,
            len(outcome.path),
            (asked_ms + verify_ms) * self._costs.ms(1) / step_ms,
        )
        self._learn_trust(outcome)
        if context.mask is None:
            self._weigh(outcome, costs, asked_ms)
        for model in self._models or ():
            if model is self._model and self._held is not None:
                depth = model.drafting.drafting.passes.cost.depth
                n_held = len(self._drafted.matching(outcome.emitted))
                self._held.observe(min(depth, n_emitted), n_held)
            else:
                model.acceptance.forget()
        self._count_pass(timings.company, n_emitted, n_rows, timings.verify_ms)

    def _learn_trust(self, outcome: RoundOutcome) -> None:
        """Learns how far free drafters can be believed, from all that they proposed."""
        tree = self._proposed
        at = ROOT
        for trust in (*self._trust.values(), *self._planner.trust.values()):
            trust.forget()
        for token in outcome.emitted:
            next_node = ROOT
            for child in tree.children(at):
                node = tree.nodes[child]
                is_right = node.token == token
                if (evidence := self._trust.get(node.origin)) is not None:
                    evidence.observe(node.probability, float(is_right))
                    self._planner.trust[node.origin].observe(node.probability, float(is_right))
                next_node = child if is_right else next_node
            if next_node == ROOT:
                return
            at = next_node

    def _weigh(self, outcome: RoundOutcome, costs: CostTable, asked_ms: float) -> None:
        """Compares what asking each drafter took with what its drafts saved.

        asked_ms: what the round took besides its pass. What no drafter took of it alone counts as
        theirs in equal parts, for a text that rests does not take it.
        """
        nodes, step_ms = outcome.tree.nodes, costs.ms(1)
        row = (costs.ms(len(nodes) + 1) / step_ms - 1) / max(len(nodes), 1)
        saved = dict.fromkeys(self._worth, 0.0)
        for i, (_, _, _, _, origin) in enumerate(nodes):
            name = origin if origin in saved else TEAM
            if name in saved:
                saved[name] += (i in outcome.path) - row
        common_ms = 0.0
        if self._asked_ms and not self.team.models:
            common_ms = (asked_ms - sum(self._asked_ms.values())) / len(self._asked_ms)
        for name, worth in self._worth.items():
            if name in self._asked_ms or (name == MTP and self._had_mtp):
                cost = (self._asked_ms.get(name, 0.0) + common_ms) / step_ms
                if name == MTP:
                    cost += self._had_mtp
                worth.observe(saved[name], cost)
            else:
                worth.rested()

    def _rest(self) -> None:
        for worth in self._worth.values():
            worth.rested()

    def _count_pass(self, company: OtherTexts, n_emitted: int, n_rows: int, ms: float) -> None:
        """Learns what a pass took and who shared it."""
        self._sharing.observe(company, n_emitted)
        self._end_round(company, n_emitted, n_rows - 1, ms)
        n_all = n_rows + company.n_rows
        # A pass over rows of several texts takes a little longer than one over as many of one.
        if company == ALONE or not self._costs.has_seen(n_all):
            self._costs.observe(n_all, ms)

    def _end_round(
        self, company: OtherTexts, n_emitted: int, n_drafted: int, pass_ms: float
    ) -> None:
        """Learns what the round took in all, and decides whether the next one may draft."""
        n_others = company.n_texts
        if not n_others:
            self._be_alone()
            return
        now_s, began_s = self._clock(), self._ended_s
        self._ended_s = now_s
        if self._shared is None:
            self._shared = self._planner.begin_among(n_others)
        shared = self._shared
        own_ms = 1000 * (now_s - began_s) - pass_ms if began_s else 0.0
        if self._rests_with_others:
            shared.rested(company, own_ms, pass_ms)
            if shared.is_drafting:
                self._sharing = SharingEstimate(n_others)
        else:
            # Those that draft share the passes of their models.
            n_drafting = max(self._planner.throughput.n_drafting, 1)
            own_ms -= self._model_ms * (1 - 1 / n_drafting)
            shared.drafted(company, n_emitted, n_drafted, own_ms, pass_ms)
        self._rests_with_others = not shared.is_drafting

    def _be_alone(self) -> None:
        """Ends what the text has to do with others: nobody shares its passes."""
        self._ended_s = 0.0
        if self._shared is not None:
            self._shared.end()
            self._shared = None
            if self._rests_with_others:
                self._sharing = SharingEstimate(0)
            self._rests_with_others = False


class SharingEstimate:
    """What is expected to share the passes of one text, from the passes before."""

    def __init__(self, n_texts: int) -> None:
        """n_texts: others that are under way where the text begins."""
        self.n_texts = self._n_rows = float(n_texts)
        self._n_emitted = 1.0  # by this text in a pass; others are taken to do as well

    def observe(self, company: OtherTexts, n_emitted: int) -> None:
        """Takes in what shared a pass, and how many tokens the text got from it."""
        self.n_texts += _COMPANY_RATE * (company.n_texts - self.n_texts)
        self._n_rows += _COMPANY_RATE * (min(company.n_rows, _MAX_ROWS) - self._n_rows)
        self._n_emitted += _COMPANY_RATE * (n_emitted - self._n_emitted)

    def costs(self, table: CostTable) -> CostTable:
        """Returns what passes cost this text. table: what they cost if nobody shares them."""
        if self.n_texts < _MIN_COMPANY:
            return table
        return table.shared(self._n_rows, self.n_texts * self._n_emitted)

    def plain_ms(self, table: CostTable) -> float:
        """Returns this text's part of a pass in which it drafts nothing."""
        if self.n_texts < _MIN_COMPANY:
            return table.ms(1)
        n_tokens = self.n_texts * self._n_emitted + 1
        return table.ms(round(self._n_rows) + 1) / n_tokens

    def own_ms(self, ms: float, table: CostTable, plain_ms: float) -> float:
        """Returns this text's part of a pass that took ``ms``.

        plain_ms: its part of a pass in which it drafts nothing.
        """
        if self.n_texts < _MIN_COMPANY:
            return ms
        return max(ms - (table.ms(round(self._n_rows) + 1) - plain_ms), plain_ms / 2)


def by_value(tree: DraftTree) -> DraftTree:
    """Returns ``tree`` with its likeliest nodes first; parents stay before their children."""
    values = tree.values()
    order = sorted(range(len(tree)), key=lambda i: (-values[i], i))
    if order == list(range(len(tree))):
        return tree
    result, index_of = DraftTree(), {ROOT: ROOT}
    for i in order:
        node = tree.nodes[i]
        index_of[i] = result.add(node.token, index_of[node.parent], node.probability, node.origin)
    return result
