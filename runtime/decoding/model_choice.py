"""Which model drafts next: a draft model, a head, or some of the model's own layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgedec.runtime.decoding.cost_book import CostBook
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.decoding.model_advisor import ModelAdvisor, ModelPlan, ModelRates
from edgedec.runtime.drafting.draft_cost import Promise
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, ModelDrafting
from edgedec.runtime.drafting.isolation import IsolatedModelDrafting
from edgedec.runtime.sequences.passes import Passes

RatesOf = Callable[[str, Promise | None], ModelRates]
"""What was learned in all requests of the model with a role."""


@dataclass
class _Candidate:
    role: str
    drafting: IsolatedModelDrafting
    advisor: ModelAdvisor | None = None


class ModelChoice:
    """The models that may draft, in one request; at most one of them drafts in a round."""

    def __init__(
        self,
        models: Sequence[tuple[str, IsolatedModelDrafting]],
        costs: CostBook,
        rates_of: RatesOf,
        clock: Callable[[], float],
    ) -> None:
        """models: each with the role that its costs are kept under. clock: in seconds."""
        self._candidates = [_Candidate(role, drafting) for role, drafting in models]
        self._costs = costs
        self._rates_of = rates_of
        self._clock = clock
        self._proposed_ms = 0.0  # what the latest proposal took
        self._chosen = self._candidates[0] if models else None

    @property
    def drafting(self) -> ModelDrafting | None:
        """The model that drafted last; before that the first one."""
        return None if self._chosen is None else self._chosen.drafting.drafting

    @property
    def name(self) -> str:
        """What `drafting` is called."""
        return "" if self._chosen is None else self._chosen.drafting.name

    @property
    def drafted_ms(self) -> float:
        """What its latest proposal cost, see `ModelAdvisor.drafted_ms`."""
        if self._chosen is None or self._chosen.advisor is None:
            return 0.0
        return self._chosen.advisor.drafted_ms

    def plan(
        self,
        context: DraftContext,
        room: Budget,
        target: CostTable,
        free_rate: float,
        alone: CostTable,
    ) -> Passes[ModelPlan]:
        """Returns what the model promises that promises most, if one pays.

        free_rate: tokens per millisecond that doing without promises for this round.
        target: what passes of the target model cost this round. alone: if nobody shares them.
        """
        best = ModelPlan()
        for candidate in self._candidates:
            if candidate.drafting.is_off:
                continue
            advisor = yield from self._advisor_of(candidate, alone)
            plan = advisor.plan(context, room, target, free_rate, best.rate)
            if plan.levels:
                best, self._chosen = plan, candidate
        return best

    def propose(
        self, context: DraftContext, room: Budget, target: CostTable, plan: ModelPlan, n_nodes: int
    ) -> Passes[tuple[DraftTree, Budget]]:
        """Returns what the planned model drafts, and within what."""
        assert self._chosen is not None
        assert self._chosen.advisor is not None
        budget = self._chosen.advisor.budget(plan, room, target, n_nodes)
        drafting, started_s = self._chosen.drafting, self._clock()
        tree = yield from drafting.propose(context, budget)
        self._proposed_ms = 1000 * (self._clock() - started_s)
        drafting.drafting.passes.cost.takes_in_all(self._proposed_ms)
        return tree, budget

    def learn(
        self, plan: ModelPlan, n_held: int, n_emitted: int, plain_ms: float, verify_ms: float
    ) -> None:
        """Takes in a round that followed ``plan``, and of whose drafts ``n_held`` held.

        plain_ms: what plain decoding takes for a token.
        """
        all_ms = verify_ms + (self._proposed_ms if plan.levels else 0.0)
        for candidate in self._candidates:
            if (advisor := candidate.advisor) is None:
                continue
            advisor.saved_ms += n_emitted * plain_ms - all_ms
            if plan.levels and candidate is self._chosen:
                advisor.learn(plan, n_held, n_emitted, verify_ms)
            else:
                spent_ms = self.drafted_ms if plan.levels else 0.0
                advisor.learn_without(n_emitted * plain_ms / (verify_ms + spent_ms))

    def _advisor_of(self, candidate: _Candidate, target: CostTable) -> Passes[ModelAdvisor]:
        if candidate.advisor is None:
            drafting = candidate.drafting.drafting
            promise = drafting.passes.promise
            if promise is None:
                own = yield from self._costs.of(candidate.role, drafting.passes.sequence)
            else:
                own = target.scaled(promise.cost)
            rates = self._rates_of(candidate.role, promise)
            candidate.advisor = ModelAdvisor(drafting, own, rates)
            candidate.drafting.price(own.row_ms_of_many, target.ms(1))
        return candidate.advisor
