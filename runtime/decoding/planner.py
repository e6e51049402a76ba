"""The contract of planners, which decide what is drafted, and the simplest one."""

from __future__ import annotations

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgedec.runtime.decoding.cost_book import CostBook
from edgedec.runtime.decoding.decisions import saving
from edgedec.runtime.drafting.compiled import TeamDrafting
from edgedec.runtime.drafting.draft_tree import DraftTree
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
from edgedec.runtime.drafting.isolation import (
    IsolatedDrafter,
    IsolatedDrafting,
    IsolatedModelDrafter,
    IsolatedModelDrafting,
    failures,
)
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.rows import ALONE, OtherTexts, Rows
from edgedec.runtime.sequences.sequence import TokenSequence


@dataclass(frozen=True, slots=True)
class RoundTimings:
    """What a round took.

    draft_ms: proposing. verify_ms: the pass of the target model, verification and commit.
    company: what shared the pass.
    """

    draft_ms: float
    verify_ms: float
    company: OtherTexts = ALONE


class Planning(ABC):
    """A planner's part in one request. team: the parts of its drafters."""

    def __init__(self, team: DraftingTeam) -> None:
        self.team = team

    @property
    @abstractmethod
    def model(self) -> ModelDrafting | None:
        """The model that drafted for this round, or would have, if there is one."""

    @property
    def wants_mtp(self) -> bool:
        """Whether the next pass shall give what light heads in the model's graph say."""
        return True

    @property
    def is_resting(self) -> bool:
        """Whether nothing is drafted in the next round: a step of plain decoding will do."""
        return False

    def rested(self, rows: Rows) -> None:
        """Learns from such a step, whose pass gave ``rows``."""
        return

    @abstractmethod
    def propose(self, context: DraftContext, room: Budget) -> Passes[DraftTree]:
        """Returns the tree to verify, at most ``room``; an empty one asks for a plain step."""

    @abstractmethod
    def observe(
        self, context: DraftContext, outcome: RoundOutcome, timings: RoundTimings | None
    ) -> None:
        """Learns from a round; ``context`` is that of before it.

        Called for the first token, too, which prefill gave: ``timings`` is None, the tree empty.
        """

    def end(self) -> None:
        """Learns that the output ended."""
        return

    @abstractmethod
    def explain(self) -> list[str]:
        """Returns what was decided in this output so far, a line each."""

    def explain_rounds(self) -> list[str]:
        """Returns what was decided in each round, and why; nothing where all are alike."""
        return []


class Planner(Protocol):
    """Decides each round which drafters propose how much, and learns from what becomes of it."""

    @property
    def name(self) -> str:
        """What users call the method."""

    @property
    def failures(self) -> Mapping[str, str]:
        """Drafters that were switched off, and why."""

    @property
    def hidden_layers(self) -> Sequence[int]:
        """Layers whose hidden states the drafters need."""

    @property
    def is_resting(self) -> bool:
        """Whether an output that begins now drafts nothing at first, nor needs what drafters do."""

    def begin(
        self,
        prompt: DraftPrompt,
        clock: Callable[[], float] = time.perf_counter,
    ) -> Planning:
        """Returns the part of a new output's request.

        clock: seconds of this request alone.
        """

    def close(self) -> None:
        """Releases the drafters."""


class Drafters:
    """The drafters of a planner: free ones, and those with a model."""

    def __init__(self, free: Sequence[Drafter], models: Sequence[ModelDrafter] = ()) -> None:
        self.free = [IsolatedDrafter(drafter) for drafter in free]
        self.models = [IsolatedModelDrafter(model) for model in models]

    @property
    def all(self) -> list[IsolatedDrafter | IsolatedModelDrafter]:
        """Every drafter."""
        return [*self.free, *self.models]

    @property
    def failures(self) -> dict[str, str]:
        """Drafters that were switched off, and why."""
        return failures(drafter.isolation for drafter in self.all)

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """Layers whose hidden states some drafter needs."""
        return tuple(sorted({layer for drafter in self.all for layer in drafter.hidden_layers}))

    def begin(self, prompt: DraftPrompt) -> DraftingTeam:
        """Returns the parts of a new output's request."""
        begun = [model.begin(prompt) for model in self.models]
        models = [model for model in begun if model is not None]
        return DraftingTeam([drafter.begin(prompt) for drafter in self.free], models)

    def close(self) -> None:
        for drafter in self.all:
            drafter.close()


@dataclass(frozen=True)
class DraftingTeam:
    """The parts of all drafters of a planner in one request.

    together: compiled ones that propose as one; they are not in ``free``.
    """

    free: list[IsolatedDrafting]
    models: list[IsolatedModelDrafting]
    together: TeamDrafting | None = None

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        """Tells all of a round."""
        for drafting in self._all:
            drafting.observe(context, outcome)

    def end(self, tokens: Sequence[int]) -> None:
        """Tells all that the output ended."""
        for drafting in self._all:
            drafting.end(tokens)

    def use_idle_time(self, tokens: Sequence[int], target: TokenSequence) -> Passes[int]:
        """Has the models use idle time after ``tokens``; see `ModelDrafting.use_idle_time`."""
        n_computed = 0
        for model in self.models:
            n_computed += yield from model.use_idle_time(tokens, target)
        return n_computed

    def explain(self) -> list[str]:
        """Returns what the models decided for themselves, a line each."""
        return [line for model in self.models for line in model.drafting.explain()]

    @property
    def _all(self) -> list[TeamDrafting | IsolatedDrafting | IsolatedModelDrafting]:
        together = [] if self.together is None else [self.together]
        return [*together, *self.free, *self.models]


class FixedPlanner:
    """Asks all its drafters every round and fuses their trees within a fixed budget."""

    def __init__(
        self,
        free: Sequence[Drafter],
        budget: Budget,
        name: str = "",
        model: ModelDrafter | None = None,
        costs: CostBook | None = None,
    ) -> None:
        """costs: say in the end what plain decoding would have taken, if they are known."""
        self._costs = costs
        self._drafters = Drafters(free, () if model is None else (model,))
        self._budget = budget
        self.name = name or "+".join(drafter.name for drafter in self._drafters.all)
        self.hidden_layers = self._drafters.hidden_layers
        self.is_resting = False

    @property
    def failures(self) -> dict[str, str]:
        return self._drafters.failures

    def begin(
        self,
        prompt: DraftPrompt,
        clock: Callable[[], float] = time.perf_counter,
    ) -> FixedPlanning:
        """Returns the part of a new output's request."""
        team = self._drafters.begin(prompt)
        return FixedPlanning(team, self._budget, self.name, self._costs)

    def close(self) -> None:
        self._drafters.close()


class FixedPlanning(Planning):
    """A fixed budget for one output."""

    def __init__(
        self, team: DraftingTeam, budget: Budget, name: str, costs: CostBook | None = None
    ) -> None:
        super().__init__(team)
        self._budget = budget
        self._name = name
        self._costs = costs
        self._n_emitted, self._ms = 0, 0.0

    @property
    def model(self) -> ModelDrafting | None:
        return next((model.drafting for model in self.team.models), None)

    def propose(self, context: DraftContext, room: Budget) -> Passes[DraftTree]:
        options = context.speculation
        n_nodes = options.draft_len or self._budget.n_nodes
        depth = options.depth or max(self._budget.depth, options.draft_len or 0)
        budget = dataclasses.replace(
            self._budget, n_nodes=min(n_nodes, room.n_nodes), depth=min(depth, room.depth)
        )
        trees = [drafting.propose(context, budget) for drafting in self.team.free]
        for model in self.team.models:
            trees.insert(0, (yield from model.propose(context, budget)))
        drafted = [tree for tree in trees if len(tree)]
        return drafted[0] if len(drafted) == 1 else fuse(drafted, budget)

    def observe(
        self, context: DraftContext, outcome: RoundOutcome, timings: RoundTimings | None
    ) -> None:
        self.team.observe(context, outcome)
        if timings is not None:
            self._n_emitted += len(outcome.emitted)
            self._ms += timings.draft_ms + timings.verify_ms

    def explain(self) -> list[str]:
        budget = self._budget
        lines = [
            f"{self._name}: at most {budget.n_nodes} drafted tokens every round, {budget.depth} "
            "deep"
        ]
        table = None if self._costs is None else self._costs.known("target")
        if table is not None and self._ms > 0:
            lines.insert(0, saving(self._n_emitted, self._ms, 1 / table.ms(1)))
        return lines
