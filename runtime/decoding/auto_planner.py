"""The planner of method `auto`: asks drafters, and drafts as `draft_length` decides, or nothing.

Free drafters are asked while that saves time; a model drafts where its levels promise more than
they did without it. Proposals that were not verified are compared with the emitted text all the
same, which costs nothing. While nothing is to be asked, rounds are plain decoding. Where other
texts share the passes, a further row costs what it adds to a pass over all their rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgedec.runtime.decoding.cost_book import CostBook
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.decoding.decisions import Decision, DecisionLog
from edgedec.runtime.decoding.draft_length import (
    LEVELS,
    MAX_NODES,
    MODEL_REST,
    NOTHING_PAYS,
    PRIOR,
    PURSE,
    DepthAcceptance,
    Draft,
    Evidence,
    Ledger,
    ModelCosts,
    Worth,
    levels,
    verified,
)
from edgedec.runtime.decoding.planner import Drafters, DraftingTeam, Planning, RoundTimings
from edgedec.runtime.drafting.compiled import CompiledDrafter, CompiledTeam
from edgedec.runtime.drafting.draft_cost import DraftCost
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
from edgedec.runtime.drafting.fusion import UNLIKELY, fuse
from edgedec.runtime.drafting.isolation import IsolatedModelDrafting
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.rows import ALONE, OtherTexts, Rows
from edgedec.runtime.sequences.sequence import TokenSequence

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


class ModelKnowledge:
    """What all requests know of a model that drafts. step_ms: of a level, 0 before any."""

    def __init__(self, acceptance: float) -> None:
        self.acceptance = DepthAcceptance(acceptance)
        self.predicted = DepthAcceptance(acceptance)  # where its rows of the text are predictions
        self.step_ms = 0.0

    def learn_step(self, cost: DraftCost, ms: float) -> None:
        """Takes in what a proposal took, ``ms`` in all."""
        cost.takes_in_all(ms)
        is_usual = 0 < cost.n_fed <= 2
        if n_steps := cost.n_levels + is_usual:
            step_ms = (cost.level_ms + is_usual * cost.feed_ms + cost.other_ms) / n_steps
            self.step_ms += (0.1 if self.step_ms else 1.0) * (step_ms - self.step_ms)


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
        self.roles = tuple(models or ())
        self.knowledge: dict[str, ModelKnowledge] = {}
        compiled_names = () if self.team is None else self.team.names
        names = (*(drafter.name for drafter in others), *compiled_names)
        self.trust = {name: Evidence(1.0) for name in names}
        self.sharing = SharingEstimate()
        self.python_ms = 0.0  # of a round in which anybody is asked, besides passes
        self.known_worth: dict[str, Worth] = {}  # at the end of the latest text, by who is asked
        layers = {layer for drafter in compiled for layer in drafter.hidden_layers}
        self.hidden_layers = tuple(sorted(layers.union(self.drafters.hidden_layers)))

    @property
    def failures(self) -> dict[str, str]:
        return self.drafters.failures

    def begin(
        self,
        prompt: DraftPrompt,
        target: TokenSequence,
        clock: Callable[[], float] = time.perf_counter,
    ) -> AutoPlanning:
        """Returns the part of a new output's request."""
        team = self.drafters.begin(prompt)
        silent = {GRAMMAR: not prompt.has_grammar, REWRITE: not prompt.prediction}
        team = replace(
            team, free=[drafter for drafter in team.free if not silent.get(drafter.name)]
        )
        if self.team is not None:
            team = replace(team, together=self.team.begin(prompt))
        return AutoPlanning(self, team, target, clock)

    def worth(self, name: str) -> Worth:
        """Returns whether asking a drafter is worth it where another text begins.

        What earlier texts say counts half, as texts differ.
        """
        known = self.known_worth.get(name)
        return Worth() if known is None else Worth(known.cost, (known.purse + PURSE) / 2)

    def learn_python(self, ms: float) -> None:
        """Takes in what a round took besides passes and models that draft."""
        self.python_ms += (0.1 if self.python_ms else 1.0) * (ms - self.python_ms)

    def close(self) -> None:
        self.drafters.close()


@dataclass
class _Model:
    """A model that drafts, in one request."""

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
        team: DraftingTeam,
        target: TokenSequence,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(team)
        self._planner, self._target, self._clock = planner, target, clock
        self._trust = {name: Evidence(one.rate) for name, one in planner.trust.items()}
        self._free: list[tuple[str, Any]] = [(one.name, one) for one in team.free]
        if team.together is not None:
            self._free.append((TEAM, team.together))
        self._worth = {name: planner.worth(name) for name, _ in self._free}
        self._is_asking = set(self._worth)  # who is to be asked in the next round
        self._asked_ms: dict[str, float] = {}  # who was asked in this round. Units: ms
        self._models: list[_Model] | None = None
        self._model: _Model | None = None  # that drafted in this round
        self._shown = next(iter(team.models), None)  # that drafted last
        self._held: DepthAcceptance | None = None
        self._planned_ms = self._model_ms = 0.0  # that it was to take, and took
        self._n_waits = 0  # rounds until a model is considered again
        self._ledger = Ledger()
        self._table: CostTable | None = None
        self._costs: CostTable | None = None  # the same, or what those pay who share passes
        self._proposed = self._drafted = DraftTree()
        self._decision: Decision | None = None
        self._has_mtp = True  # the pass before this round had light heads
        self.log = DecisionLog()

    @property
    def model(self) -> ModelDrafting | None:
        return None if self._shown is None else self._shown.drafting

    @property
    def wants_mtp(self) -> bool:
        return MTP in self._is_asking

    @property
    def is_resting(self) -> bool:
        if self._is_asking or self._costs is None or (self._has_mtp and MTP in self._worth):
            return False
        # Models that read hidden states need those of every pass.
        return not self.team.models or (self._n_waits > 0 and not self._planner.hidden_layers)

    def rested(self, rows: Rows) -> None:
        assert self._costs is not None
        step_ms = self._costs.ms(1)
        self._ledger.add(1, step_ms, step_ms)
        self.log.add(_PLAIN, 0, step_ms)
        self._n_waits -= 1
        for model in self._models or ():
            model.acceptance.forget()
        self._end_round(rows.company, 1, 1, rows.ms)

    def propose(self, context: DraftContext, room: Budget) -> Passes[DraftTree]:
        if self._table is None:
            if self._planner.costs.is_measuring("target"):
                return DraftTree()
            self._table = yield from self._planner.costs.of("target", self._target)
            self._choose()
        assert self._costs is not None
        costs, self._model, self._asked_ms = self._costs, None, {}
        max_ms = self._ledger.allowance(costs.ms(1))
        tree = self._ask_free(context, room, costs)
        python_ms = self._planner.python_ms
        draft = verified(tree.nodes, self._trust, costs, python_ms, max_ms, room.n_nodes)
        plan = Draft(0, draft.rate, NOTHING_PAYS)
        if self.team.models:
            plan = yield from self._plan_model(context, room, costs, draft, max_ms - python_ms)
            self._n_waits = 0 if plan.n else MODEL_REST
        if self._model is not None:
            tree, draft = yield from self._ask_model(context, room, costs, plan, tree, max_ms)
        self._proposed = tree
        name = "" if self._model is None else self._model.drafting.name
        reason = draft.reason if draft.n or plan.n else plan.reason
        self._decision = Decision(draft.n, plan.n, draft.rate * costs.ms(1), name, reason)
        return tree.beginning(draft.n)

    def observe(
        self, context: DraftContext, outcome: RoundOutcome, timings: RoundTimings | None
    ) -> None:
        began_s = self._clock()
        has_mtp = outcome.mtp is not None
        for name, drafting in self._free:
            if timings is None or name in self._asked_ms or (name == MTP and has_mtp):
                drafting.observe(context, outcome)
        for model in self.team.models:
            model.observe(context, outcome)
        self._has_mtp = has_mtp
        if timings is not None and self._decision is not None:
            self._learn(context, outcome, timings, 1000 * (self._clock() - began_s))
        elif timings is None and not self._planner.python_ms:
            self._planner.learn_python(2000 * (self._clock() - began_s))
        self._proposed = self._drafted = DraftTree()
        self._decision = None

    def end(self) -> None:
        """The output ended: what asking was worth is where the next one begins."""
        if self._costs is not None:
            self._planner.known_worth.update(self._worth)

    def explain(self) -> list[str]:
        """Returns what was decided how often, and what it promised and brought."""
        return [] if self._table is None else self.log.lines(1.0 / self._table.ms(1))

    def rounds(self) -> list[str]:
        return self.log.rounds()

    def _choose(self) -> None:
        """Chooses who is asked in the next round: who is worth it, and may be lost."""
        assert self._table is not None
        costs = self._costs = self._planner.sharing.costs(self._table)
        step_ms = costs.ms(1)
        mtp = self._planner.mtp_share * self._table.ms(1) / step_ms
        # Asking is of use only where what is proposed may be verified then.
        left = (self._ledger.allowance(step_ms) - costs.ms(2)) / step_ms
        self._is_asking = set()
        for name, worth in self._worth.items():
            cost = max(worth.cost, mtp if name == MTP else 0.0)
            if worth.is_positive and cost <= left:
                self._is_asking.add(name)
                left -= cost

    def _ask_free(self, context: DraftContext, room: Budget, costs: CostTable) -> DraftTree:
        """Returns what the free drafters propose that are worth asking; under a grammar all are.

        What a grammar leaves no choice about is known in its place alone.
        """
        row = (costs.ms(3) / costs.ms(1) - 1) / 2  # what is worth less will hardly pay for itself
        budget = Budget(MAX_NODES, min(MAX_NODES, room.depth), min_value=max(UNLIKELY, row / 2))
        trees = []
        for name, drafting in self._free:
            is_asked = self._has_mtp if name == MTP else name in self._is_asking
            if context.mask is None and not is_asked:
                continue
            began_s = self._clock()
            tree = drafting.propose(context, budget)
            self._asked_ms[name] = 1000 * (self._clock() - began_s)
            if len(tree):
                trees.append(tree if name == TEAM else by_value(tree))
        return trees[0] if len(trees) == 1 else fuse(trees, budget) if trees else DraftTree()

    def _plan_model(
        self, context: DraftContext, room: Budget, costs: CostTable, draft: Draft, max_ms: float
    ) -> Passes[Draft]:
        """Returns how deep which model is to draft, which `_model` is then."""
        if self._models is None:
            self._models = yield from self._open_models()
        best, n_left = Draft(0, draft.rate, NOTHING_PAYS), min(room.depth, room.n_nodes)
        for model in self._models:
            if model.drafting.is_off:
                continue
            unread = model.drafting.drafting.unread(context.tokens)
            takes, held = model.takes(unread.n_missing), model.acceptance
            plan = levels(held, takes, costs, max_ms, n_left, best.rate)
            if unread.n_predicted:
                known = levels(model.predicted, takes, costs, max_ms, n_left, 1 / costs.ms(1))
                read_ms = unread.n_predicted * model.costs.row_ms_of_many
                saved_ms = room.depth * (1 / known.rate - 1 / plan.rate) if plan.n else 0.0
                if saved_ms > read_ms and read_ms + costs.ms(1) <= max_ms:
                    model.drafting.drafting.read_exactly()
                else:
                    plan, held = known, model.predicted
            if plan.n and plan.rate > best.rate:
                best, self._model, self._held = plan, model, held
                self._planned_ms = takes.ms(plan.n)
            elif not best.n:
                best = replace(best, reason=plan.reason)
        return best

    def _open_models(self) -> Passes[list[_Model]]:
        assert self._table is not None
        names = [one.name for one in self._planner.drafters.models]
        roles = dict(zip(names, self._planner.roles, strict=True))
        models = []
        for drafting in self.team.models:
            role, passes = roles[drafting.name], drafting.drafting.passes
            if (promise := passes.promise) is None:
                costs = yield from self._planner.costs.of(role, passes.sequence)
            else:
                costs = self._table.scaled(promise.cost)
            first = PRIOR if promise is None else promise.acceptance
            known = self._planner.knowledge.setdefault(role, ModelKnowledge(first))
            drafting.price(costs.row_ms_of_many, self._table.ms(1))
            of_text = (DepthAcceptance(general=g) for g in (known.acceptance, known.predicted))
            models.append(_Model(drafting, costs, known, *of_text))
        return models

    def _ask_model(
        self,
        context: DraftContext,
        room: Budget,
        costs: CostTable,
        plan: Draft,
        tree: DraftTree,
        max_ms: float,
    ) -> Passes[tuple[DraftTree, Draft]]:
        """Returns what to propose where a model drafts. tree: what the others propose."""
        model = self._model
        assert model is not None
        self._shown = model.drafting
        row_ms = (costs.ms(8) - costs.ms(1)) / 7
        # Drafts that look sure go beyond the plan, as far as that may be lost.
        left_ms = max(max_ms - model.takes(0).ms(plan.n) - costs.ms(plan.n + 1), 0.0)
        further = int(left_ms / (model.step_ms + costs.ms(2) - costs.ms(1)))
        budget = Budget(
            n_nodes=min(2 * MAX_NODES, room.n_nodes),
            depth=min(plan.n + min(further, plan.n), LEVELS, room.depth),
            min_value=0.5 * row_ms * plan.rate,
            min_step_value=min((model.step_ms + row_ms) * plan.rate, 0.95),
            n_step_nodes=2,
        )
        began_s = self._clock()
        self._drafted = yield from model.drafting.propose(context, budget)
        self._model_ms = ms = 1000 * (self._clock() - began_s)
        model.knowledge.learn_step(model.drafting.drafting.passes.cost, ms)
        if len(tree) and len(self._drafted):
            tree = fuse([self._drafted, tree], budget)
        elif len(self._drafted):
            tree = by_value(self._drafted)
        asked_ms = ms + self._planner.python_ms
        return tree, verified(tree.nodes, self._trust, costs, asked_ms, max_ms, room.n_nodes)

    def _learn(
        self, context: DraftContext, outcome: RoundOutcome, timings: RoundTimings, ms: float
    ) -> None:
        assert self._decision is not None
        assert self._costs is not None
        assert self._table is not None
        costs, n_emitted, n_rows = self._costs, len(outcome.emitted), len(outcome.tree) + 1
        step_ms, share = costs.ms(1), self._planner.mtp_share if self._has_mtp else 0.0
        mtp_ms = share * self._table.ms(n_rows)
        model_ms = min(self._model_ms, 2 * self._planned_ms) if self._model is not None else 0.0
        python_ms = timings.draft_ms - self._model_ms * (self._model is not None)
        python_ms = min(max(python_ms + timings.other_ms + ms, 0.0), step_ms)  # or was disturbed
        self._planner.learn_python(python_ms)
        taken_ms = costs.ms(n_rows) + mtp_ms + model_ms + python_ms
        self._ledger.add(n_emitted, taken_ms, step_ms)
        self.log.add(self._decision, len(outcome.path), taken_ms * self._table.ms(1) / step_ms)
        self._learn_trust(outcome)
        if context.mask is None:
            self._weigh(outcome, costs, python_ms, mtp_ms)
        for model in self._models or ():
            if model is self._model and self._held is not None:
                depth = model.drafting.drafting.passes.cost.depth
                n_held = len(self._drafted.matching(outcome.emitted))
                self._held.observe(min(depth, n_emitted), n_held)
            else:
                model.acceptance.forget()
        pass_ms = (timings.verify_ms - timings.other_ms) / (1 + share)
        self._end_round(timings.company, n_emitted, n_rows, pass_ms, self._asked_ms)

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

    def _weigh(
        self, outcome: RoundOutcome, costs: CostTable, python_ms: float, mtp_ms: float
    ) -> None:
        """Compares what asking each drafter took with what its drafts saved.

        python_ms: of the whole round, of which all who were asked bear a part.
        """
        nodes, step_ms = outcome.tree.nodes, costs.ms(1)
        row = (costs.ms(len(nodes) + 1) / step_ms - 1) / max(len(nodes), 1)
        saved = dict.fromkeys(self._worth, 0.0)
        for i, (_, _, _, _, origin) in enumerate(nodes):
            name = origin if origin in saved else TEAM
            if name in saved:
                saved[name] += (i in outcome.path) - row
        n_asked = len(self._asked_ms) + (self._model is not None)
        shared_ms = (python_ms - sum(self._asked_ms.values())) / max(n_asked, 1)
        for name, worth in self._worth.items():
            is_heads = name == MTP and mtp_ms > 0
            if name in self._asked_ms or is_heads:
                own_ms = self._asked_ms[name] + shared_ms if name in self._asked_ms else 0.0
                worth.observe(saved[name], (own_ms + is_heads * mtp_ms) / step_ms)

    def _end_round(
        self,
        company: OtherTexts,
        n_emitted: int,
        n_rows: int,
        ms: float,
        asked: Collection[str] = (),
    ) -> None:
        """Learns what a pass took and who shared it, and chooses who is asked in the next round."""
        assert self._table is not None
        self._planner.sharing.observe(company, n_emitted)
        if company == ALONE:  # other passes say nothing of what the smallest ones take
            self._table.observe(n_rows, ms)
        for name, worth in self._worth.items():
            if name not in asked:
                worth.rested()
        self._choose()


class SharingEstimate:
    """What is expected to share the passes of a text, from those before, of all texts."""

    def __init__(self) -> None:
        self._n_texts = self._n_rows = 0.0
        self._n_emitted = 1.0  # by a text in a pass
        self._known: tuple[CostTable, float, int, float, CostTable] | None = None

    def observe(self, company: OtherTexts, n_emitted: int) -> None:
        """Takes in what shared a text's pass, and how many tokens the text got from it."""
        self._n_texts += _COMPANY_RATE * (company.n_texts - self._n_texts)
        self._n_rows += _COMPANY_RATE * (min(company.n_rows, _MAX_ROWS) - self._n_rows)
        self._n_emitted += _COMPANY_RATE * (n_emitted - self._n_emitted)

    def costs(self, table: CostTable) -> CostTable:
        """Returns what passes cost a text. table: what they cost if nobody shares them."""
        if self._n_texts < _MIN_COMPANY:
            return table
        n_rows, n_tokens = round(self._n_rows), round(4 * self._n_texts * self._n_emitted) / 4
        key = table, table.ms(1), n_rows, n_tokens
        if self._known is None or self._known[:4] != key:
            self._known = (*key, table.shared(n_rows, n_tokens))
        return self._known[4]


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
