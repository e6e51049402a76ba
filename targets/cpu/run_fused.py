"""Fused graphs: edgedec's own operators on ONNX Runtime, KV cache written in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from onnxruntime import OrtValue

from edgedec.kernels import library
from edgedec.kernels.thread_pool import ThreadPool
from edgedec.runtime.backends.binding import Binding, empty_rows
from edgedec.runtime.backends.in_place import (
    InPlaceKVCache,
    InPlaceModel,
    check_kv_cache,
)
from edgedec.runtime.backends.kv_cache import Array
from edgedec.runtime.backends.model_facts import GraphToRun
from edgedec.runtime.backends.ort import PassRunner, check_ports, open_graph
from edgedec.runtime.backends.pass_arrays import PassShape, end_of, gathered
from edgedec.runtime.sequences.affinity import Affinity
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.rows import Rows

_MAX_BINDINGS = 128


class _Session:
    """A graph opened by ONNX Runtime, and the threads that its operators share."""

    def __init__(
        self, graph: Path, providers: Sequence[str], threads: int, cores: Affinity
    ) -> None:
        self.ort = open_graph(graph, 1, providers, library.library_path())
        self.pool = ThreadPool(threads, cores.processors)


class FusedModel(InPlaceModel[_Session, "_Runs"]):
    """A `Model` over a fused graph."""

    def __init__(self, graph: GraphToRun) -> None:
        super().__init__(graph)
        session = _Session(graph.path, self.contract.providers, graph.threads, self.affinity)
        self._opened = session
        check_ports(graph.path, session.ort, self.contract, self.config)
        check_kv_cache(graph.path, self.contract, self.config)

    def new_state(self, context: int) -> FusedKVCache:
        """Returns an empty KV cache; its memory is taken when it is first written to."""
        return FusedKVCache(self, context)

    def new_runs(self, shared_inputs: Mapping[str, Array]) -> _Runs:
        """Returns what runs passes whose inputs of these names stay the same."""
        return _Runs(self, shared_inputs)

    def compute_together(self, passes: Sequence[Pass]) -> list[Rows]:
        """Returns the rows of passes of several sequences, in arrays of their own."""
        return [rows.copy() for rows in super().compute_together(passes)]

    def close(self) -> None:
        """Releases the graph and its threads."""
        if self._opened is not None:
            self._opened.pool.close()
        super().close()


def open_model(graph: GraphToRun) -> FusedModel:
    """Returns the model of ``graph``; raises a BundleError where it is not what is stated."""
    return FusedModel(graph)


class FusedKVCache(InPlaceKVCache["_Runs"]):
    """A `SequenceState` whose rows the graph writes in place."""

    @property
    def panels(self) -> dict[str, OrtValue]:
        """What the graph's inputs of keys and values are bound to."""
        return {name: self._runs.shared_values[name] for name in self.caches.arrays}


class _Runs:
    """Runs of a graph over the same memory for keys and values.

    Every input and output is bound once per shape of pass, to arrays that stay where they are: a
    decode step writes a few numbers and runs.
    """

    def __init__(self, model: FusedModel, shared_inputs: Mapping[str, Array]) -> None:
        self._model = model
        self._can, self._n_layers = model.capabilities, model.n_layers
        self._runner = PassRunner()
        self._bindings: dict[PassShape, Binding] = {}
        self._logits = np.empty((0, model.config.n_logits), np.float32)
        self.shared_values = _values(shared_inputs)
        self._take_tables(model.tables.up_to(1))

    def run(self, passes: Sequence[Pass]) -> Rows:
        """Returns the asked rows of all passes. The next run of the same shape overwrites them."""
        affinity, session = self._model.affinity, self._model.opened
        session.pool.wake()
        tables = self._model.tables.up_to(end_of(passes))
        if tables is not self._tables:
            self._take_tables(tables)
        shape, integers = gathered(passes, self._n_layers, self._can)
        binding = self._bindings.get(shape) or self._bind(session, shape)
        binding.arrays.fill(passes, integers)
        run = partial(session.pool.run, session.ort.run_with_iobinding, binding.io)
        self._runner.run(partial(affinity.run, run) if affinity.processors else run)
        rows = binding.rows
        return Rows(rows.logits, rows.hidden, rows.row_stats, mtp=rows.mtp)

    def _take_tables(self, tables: Mapping[str, Array]) -> None:
        """Binds tables of positions, which are longer than those before."""
        self._tables = tables
        self.shared_values |= _values(tables)
        self._bindings.clear()

    def _bind(self, session: _Session, shape: PassShape) -> Binding:
        """Returns arrays of a shape of pass that was not run before, bound to the graph."""
        n_copied = shape.n_rows if shape.has_logits else 0
        if n_copied > len(self._logits) or len(self._bindings) >= _MAX_BINDINGS:
            self._bindings.clear()  # they hold the old, smaller array
        config, can = self._model.config, self._can
        if n_copied > len(self._logits):
            self._logits = np.empty((n_copied, config.n_logits), np.float32)
        rows = empty_rows(shape, self._logits, config.hidden_size, can)
        width = config.hidden_size
        binding = Binding(session.ort, shape, rows, self.shared_values, width, can)
        self._bindings[shape] = binding
        return binding


def _values(arrays: Mapping[str, Array]) -> dict[str, OrtValue]:
    """Returns ``arrays`` as ONNX Runtime takes them, the same memory."""
    return {name: OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
