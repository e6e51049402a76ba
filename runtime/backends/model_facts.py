"""What every `Model` states of itself, whoever runs its graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

from edgedec.models.config import ModelConfig
from edgedec.models.graph import Capabilities, GraphContract
from edgedec.models.position_tables import PositionTables
from edgedec.runtime.sequences.affinity import Affinity
from edgedec.runtime.sequences.model import SequenceState
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.rows import Rows


@dataclass(frozen=True)
class GraphToRun:
    """A graph of a bundle, what the bundle states of it, and the threads that are to run it."""

    path: Path
    config: ModelConfig
    contract: GraphContract
    threads: int
    affinity: Affinity = field(default_factory=Affinity)


class RunningState(SequenceState, Protocol):
    """A state with a graph's inputs and outputs of its own, which it runs passes with."""

    def run(self, pass_: Pass) -> Rows:
        """Returns the rows of a pass."""


class ModelFacts:
    """The part of a `Model` that its configuration and its graph's contract decide."""

    def __init__(self, graph: GraphToRun) -> None:
        self.config = graph.config
        self.contract = graph.contract
        self.affinity = graph.affinity
        self.tables = PositionTables(graph.config, graph.contract.inputs)

    @property
    def capabilities(self) -> Capabilities:
        return self.contract.can

    @property
    def vocab_size(self) -> int:
        return self.config.n_logits

    @property
    def n_token_ids(self) -> int:
        return self.config.n_token_ids

    @property
    def n_layers(self) -> int:
        return self.config.n_layers

    def compute(self, passes: Sequence[Pass]) -> list[Rows]:
        """Runs each pass with the inputs and outputs of its own sequence; see `Model`."""
        return [cast(RunningState, pass_.sequence.state).run(pass_) for pass_ in passes]
