"""Keys and values predicted by maps, written into the KV cache of a fused graph."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from onnxruntime import OrtValue

from edgedec.kernels import library
from edgedec.models.graph import (
    PARENTS,
    POSITION_IDS,
    RING_SEQUENCES,
    SEQUENCE_FIELDS,
    SEQUENCES,
)
from edgedec.models.kv_maps import HIDDEN, WRITTEN
from edgedec.models.position_tables import PositionTables
from edgedec.runtime.backends.ort import PassRunner, open_graph
from edgedec.runtime.sequences.affinity import Affinity
from edgedec.runtime.sequences.model import SequenceState
from edgedec.runtime.sequences.rows import Float32
from edgedec.targets.cpu.run_fused import FusedKVCache


class FusedKVMaps:
    """A `KVPredictor` over a graph of maps."""

    def __init__(
        self,
        graph: Path,
        depth: int,
        hidden_size: int,
        threads: int,
        providers: Sequence[str],
        affinity: Affinity | None = None,
    ) -> None:
        self.depth = depth
        self.hidden_size = hidden_size
        self._affinity = affinity or Affinity()
        self._runner = PassRunner()
        self._session = open_graph(
            graph, threads, providers, library.library_path(), self._affinity
        )
        self._ports = {port.name for port in self._session.get_inputs()}
        self._tables: PositionTables | None = None

    def write(self, state: SequenceState, start: int, hidden: Float32) -> None:
        """Writes rows of tokens from ``start`` on; see `KVPredictor`."""
        assert isinstance(state, FusedKVCache)
        n = len(hidden)
        inputs = {
            HIDDEN: hidden[np.newaxis],
            POSITION_IDS: np.arange(start, start + n, dtype=np.int64)[np.newaxis],
            PARENTS: np.full((1, n), -1, np.int64),  # rows that see least cost least
        }
        whole, ring = state.caches.places
        for name, places in ((SEQUENCES, whole), (RING_SEQUENCES, ring)):
            if name in self._ports:
                where = np.array((start, n, n, *places), np.int64)
                inputs[name] = where.reshape(-1, SEQUENCE_FIELDS)
        if self._tables is None:
            self._tables = PositionTables(state.config, self._ports)
        inputs |= self._tables.up_to(start + n)
        values = {name: OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}
        values |= state.panels
        binding = self._session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output(WRITTEN, OrtValue.ortvalue_from_numpy(np.empty(1, np.int64)))
        with self._affinity.held():
            self._runner.run(partial(self._session.run_with_iobinding, binding))
