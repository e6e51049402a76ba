"""A draft model of which only what the advice asks for is known, and its costs."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.runtime.config import SamplingConfig
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.decoding.model_advisor import ModelAdvisor, ModelPlan, ModelRates
from edgedec.runtime.drafting.draft_passes import DraftPasses
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import (
    Budget,
    DraftContext,
    ModelDrafting,
    RoundOutcome,
    Unread,
)
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import Passes

from ..conftest import ToySession

TARGET = CostTable({1: 10.0, 2: 10.5, 4: 11.0, 8: 14.0, 16: 23.0})
OWN_MS = {1: 2.0, 16: 4.0}  # 0.25 ms for a row of many
ROOM = Budget(100, 100)
CONTEXT = DraftContext([1, 2, 3], 2, SamplingConfig(), Noise(0))


class Model(ModelDrafting):
    """A draft model of which only what the advice asks for is known."""

    def __init__(self, missing: int = 0, predicted: int = 0) -> None:
        self.missing, self.predicted, self.reads_end_only = missing, predicted, False
        self.n_read = 0
        self.passes = DraftPasses(ToySession(1))

    def unread(self, tokens: Sequence[int]) -> Unread:
        return Unread(self.missing, self.predicted, self.reads_end_only)

    def read_exactly(self) -> None:
        self.n_read += 1

    def propose(self, context: DraftContext, budget: Budget) -> Passes[DraftTree]:
        raise NotImplementedError

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None: ...

    def end(self, tokens: Sequence[int]) -> None: ...


def advisor_of(
    model: Model | None = None, acceptance: float = 0.9, own_ms: dict[int, float] = OWN_MS
) -> ModelAdvisor:
    return ModelAdvisor(model or Model(), CostTable(dict(own_ms)), ModelRates(acceptance))


def plans(
    advisor: ModelAdvisor, n: int, free_rate: float = 0.1, room: Budget = ROOM
) -> list[ModelPlan]:
    return [advisor.plan(CONTEXT, room, TARGET, free_rate) for _ in range(n)]
