"""A model without some of its layers: what else can be had for the work of predicting them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgedec.models.errors import ConfigError
from edgedec.models.model_entry import ModelEntry
from edgedec.runtime.backends.fused import FusedKVCache, FusedModel
from edgedec.runtime.cores.affinity import Affinity
from edgedec.runtime.sessions.passes import Pass
from edgedec.runtime.sessions.rows import Rows


class PrunedModel(FusedModel):
    """A fused graph of which only some layers ever run.

    Left out are the deeper ones but the last, of which models miss least.

    Source: Gromov et al., 2024 (arXiv 2403.17887), without their training.
    """

    def __init__(
        self, graph: Path, entry: ModelEntry, n_kept: int, threads: int, affinity: Affinity
    ) -> None:
        """n_kept: layers that run."""
        super().__init__(graph, entry.config, entry.contract, threads, affinity)
        kept = {*range(n_kept - 1), entry.config.n_layers - 1}
        self.gates = tuple(i // 2 in kept for i in range(2 * entry.config.n_layers))

    def new_cache(self, context: int) -> FusedKVCache:
        """Returns an empty KV cache, whose passes leave layers out."""
        return _PrunedKVCache(self, context)


class _PrunedKVCache(FusedKVCache):
    def __init__(self, model: PrunedModel, context: int) -> None:
        super().__init__(model, context)
        self._gates = model.gates

    def compute(self, wanted: Pass, n_past: int, cores: Affinity | None) -> Rows:
        """Returns the rows of a pass without some layers."""
        return super().compute(replace(wanted, layer_gates=self._gates), n_past, cores)


def check_prunable(entry: ModelEntry) -> None:
    """Raises a ConfigError unless `PrunedModel` can be made of a model."""
    if entry.contract.backend != "fused" or not entry.contract.can.gates:
        raise ConfigError("layers are left out of fused graphs only: export the model as one")
