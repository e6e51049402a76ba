"""A model without some of its layers: what else can be had for the work of predicting them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgedec.models.errors import ConfigError
from edgedec.models.model_entry import ModelEntry
from edgedec.runtime.backends.model_facts import GraphToRun
from edgedec.runtime.sequences.affinity import Affinity
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.rows import Rows
from edgedec.targets.cpu.run_fused import FusedModel


class PrunedModel(FusedModel):
    """A fused graph of which only some layers ever run.

    Left out are the deeper ones but the last, of which models miss least.

    Source: Gromov et al., 2024 (arXiv 2403.17887), without their training.
    """

    def __init__(
        self, graph: Path, entry: ModelEntry, n_kept: int, threads: int, affinity: Affinity
    ) -> None:
        """n_kept: layers that run."""
        super().__init__(GraphToRun(graph, entry.config, entry.contract, threads, affinity))
        kept = {*range(n_kept - 1), entry.config.n_layers - 1}
        self.gates = tuple(i // 2 in kept for i in range(2 * entry.config.n_layers))

    def compute(self, passes: Sequence[Pass]) -> list[Rows]:
        """Returns the rows of passes without some layers."""
        return super().compute([pass_._replace(layer_gates=self.gates) for pass_ in passes])


def check_prunable(entry: ModelEntry) -> None:
    """Raises a ConfigError unless `PrunedModel` can be made of a model."""
    if entry.contract.backend != "fused" or not entry.contract.can.gates:
        raise ConfigError("layers are left out of fused graphs only: export the model as one")
