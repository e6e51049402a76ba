"""Graphs of ONNX Runtime's own operators, on any of its providers.

Keys and values are arrays on the provider's device with room for more tokens than there are, which
go in and come out of a pass and are written in place. Where a tree's path is kept, the rows of the
tokens beside it stay where they are, hidden from later passes, until there are many of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime import OrtValue

from edgedec.models.errors import BundleError, SessionError
from edgedec.models.graph import (
    ATTENTION_BIAS,
    INPUT_IDS,
    LOGIT_ROWS,
    POSITION_IDS,
    present_port,
)
from edgedec.models.position_tables import PositionTables
from edgedec.runtime.backends.binding import empty_rows, output_arrays
from edgedec.runtime.backends.model_facts import GraphToRun, ModelFacts
from edgedec.runtime.backends.ort import PassRunner, check_ports, open_graph
from edgedec.runtime.backends.pass_arrays import PassArrays, PassShape, gathered
from edgedec.runtime.backends.whole_cache import WholeCache
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.state import KVRows
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.targets.ort.run_device_array import HOST, DeviceArray, placed
from edgedec.targets.ort.target import DEVICE

Array = npt.NDArray[Any]

_MASKED = np.float32(-3.0e38)  # -inf would turn rows without any valid position into NaN
_FIXED_INPUTS = (INPUT_IDS, POSITION_IDS, LOGIT_ROWS)
"""Inputs whose sizes the shape of a pass says."""

_MAX_HIDDEN_ROWS = 128
"""Rows of tokens that were not kept, before those that were are moved together."""


class OrtModel(ModelFacts):
    """A `Model` over a graph of ONNX Runtime's operators."""

    def __init__(self, graph: GraphToRun) -> None:
        super().__init__(graph)
        self.place = DEVICE.place_of(self.contract.providers[0])
        self._session: onnxruntime.InferenceSession | None = open_graph(
            graph.path, graph.threads, (self.place.provider,), affinity=self.affinity
        )
        if self._session.get_providers()[0] != self.place.provider:
            raise BundleError(
                f"provider {self.place.name} is installed but does not start on this machine: "
                "see its driver and libraries, or use --provider cpu"
            )
        check_ports(graph.path, self._session, self.contract, self.config)
        dtype = np.dtype(self.contract.kv.format)
        self.tables = PositionTables(self.config, self.contract.inputs, dtype)
        self._on_host: Mapping[str, Array] = {}
        self._on_device: Mapping[str, OrtValue] = {}

    @property
    def is_closed(self) -> bool:
        return self._session is None

    @property
    def session(self) -> onnxruntime.InferenceSession:
        """The graph; a SessionError where it was released."""
        if self._session is None:
            raise SessionError("the model is closed: load the bundle again")
        return self._session

    def tables_up_to(self, n_positions: int) -> Mapping[str, OrtValue]:
        """Returns the graph's tables on its device: the same object until they have to grow."""
        tables = self.tables.up_to(n_positions)
        if tables is not self._on_host:
            self._on_device = {name: placed(table, self.place) for name, table in tables.items()}
            self._on_host = tables
        return self._on_device

    def new_state(self, context: int) -> OrtKVCache:
        """Returns an empty KV cache; on the CPU its memory is taken when it is first written to."""
        return OrtKVCache(self, context)

    def close(self) -> None:
        """Releases the graph."""
        self._session = None


def open_model(graph: GraphToRun) -> OrtModel:
    """Returns the model of ``graph``; raises a BundleError where it is not what is stated."""
    return OrtModel(graph)


class _Bound(NamedTuple):
    """Arrays of one kind of pass, bound, and of which shape the latest one was."""

    io: onnxruntime.IOBinding
    shape: PassShape
    arrays: PassArrays
    inputs: dict[str, OrtValue]
    rows: Rows


class OrtKVCache(WholeCache):
    """A `SequenceState` of arrays on the provider's device, by the names of the graph's inputs.

    Shapes: each [1, n_kv_heads, C, head_size]; committed token i has row ``self._places[i]``, a
        list because a step looks at one of them, and NumPy's code is cold after a pass.
    """

    _model: OrtModel

    def __init__(self, model: OrtModel, context: int) -> None:
        self._model = model
        self._runner = PassRunner()
        config, contract = model.config, model.contract
        shape = (1, config.n_kv_heads, context + _MAX_HIDDEN_ROWS, config.head_size)
        dtype = np.dtype(contract.kv.format).type
        self._arrays = {
            name: DeviceArray(shape, dtype, model.place) for name in contract.past_ports
        }
        self._places: list[int] = []
        self._first = 0  # row of the first token of the pending pass
        self._bindings: dict[tuple[bool, tuple[tuple[int, int], ...]], _Bound] = {}
        self._tables: Mapping[str, OrtValue] = {}

    def run(self, pass_: Pass) -> Rows:
        """Returns the asked rows. They are overwritten by the next pass of the same sizes."""
        if not pass_.logit_rows:  # not all operators take arrays without rows
            rows = self.run(pass_._replace(logit_rows=(len(pass_.tree) - 1,)))
            return Rows(rows.logits[:0], rows.hidden, rows.stats.part(slice(0)))
        n_past = pass_.n_past
        self._gather_rows(n_past)
        if not pass_.n_known:
            # In a pass over a whole text the operator rotates row i to position i.
            self._first = self._end(n_past) or int(not pass_.tree.is_chain)
        model = self._model
        # The operator wants as many rows as there are keys, hidden ones too.
        tables = model.tables_up_to(self._first + len(pass_.tree))
        if tables is not self._tables:
            self._tables = tables
            self._bindings.clear()
        shape, integers = gathered((pass_,), model.n_layers, model.capabilities, has_places=False)
        bound = self._bound(shape)
        bound.arrays.fill((pass_,), integers)
        if model.place.memory != HOST:  # binding is what copies them there
            for name, value in bound.inputs.items():
                bound.io.bind_ortvalue_input(name, value)
        bias = self._attention_bias(pass_.tree, pass_.n_known, n_past)
        bound.io.bind_cpu_input(ATTENTION_BIAS, bias)
        with model.affinity.held():
            self._runner.run(partial(model.session.run_with_iobinding, bound.io))
        rows = bound.rows
        return Rows(rows.logits, rows.hidden, rows.row_stats)

    def _bound(self, shape: PassShape) -> _Bound:
        """Returns keys, values and the arrays of a pass of ``shape``, bound."""
        kind = shape.has_logits, shape.hidden
        bound = self._bindings.get(kind)
        if bound is None or bound.shape != shape:
            io = self._bind_cache() if bound is None else bound.io
            bound = self._bindings[kind] = self._new_arrays(io, shape)
        return bound

    def _new_arrays(self, io: onnxruntime.IOBinding, shape: PassShape) -> _Bound:
        arrays = PassArrays(shape, self._model.config.hidden_size)
        ports, rows = arrays.by_port(), self._new_rows(shape)
        inputs = {name: OrtValue.ortvalue_from_numpy(ports[name]) for name in _FIXED_INPUTS}
        for name, value in inputs.items():
            io.bind_ortvalue_input(name, value)
        for name, array in output_arrays(shape, rows).items():
            io.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy(array))
        return _Bound(io, shape, arrays, inputs, rows)

    def _bind_cache(self) -> onnxruntime.IOBinding:
        io = self._model.session.io_binding()
        for name, array in self._arrays.items():
            io.bind_ortvalue_input(name, array.value)
            io.bind_ortvalue_output(present_port(name), array.value)
        for name, value in self._tables.items():
            io.bind_ortvalue_input(name, value)
        return io

    def _new_rows(self, shape: PassShape) -> Rows:
        model = self._model
        n_copied = shape.n_rows if shape.has_logits else 0
        logits = np.empty((n_copied, model.vocab_size), np.float32)
        return empty_rows(shape, logits, model.config.hidden_size, model.capabilities)

    def commit(self, n_past: int, tree: TokenTree, path: Sequence[int]) -> None:
        """Notes where the rows of ``path`` are."""
        self._places[n_past:] = [self._first + i for i in path]

    def snapshot(self, start: int, stop: int) -> KVRows:
        places = self._places[start:stop]
        return {name: array.take(places) for name, array in self._arrays.items()}

    def restore(self, start: int, stop: int, kv_rows: KVRows) -> None:
        self._gather_rows(start)
        end = self._end(start)
        for name, array in self._arrays.items():
            array.put(end, kv_rows[name])
        self._places[start:] = range(end, end + stop - start)

    def close(self) -> None:
        """Releases all arrays."""
        self._bindings.clear()
        self._arrays.clear()

    def _end(self, n_past: int) -> int:
        """Returns the row behind those of the first ``n_past`` tokens."""
        return self._places[n_past - 1] + 1 if n_past else 0

    def _gather_rows(self, n_past: int) -> None:
        """Moves the rows of the first ``n_past`` tokens together where many are hidden."""
        if self._end(n_past) - n_past > _MAX_HIDDEN_ROWS:
            for array in self._arrays.values():
                array.put(0, array.take(self._places[:n_past]))
            self._places = list(range(n_past))

    def _attention_bias(self, tree: TokenTree, n_known: int, n_past: int) -> Array:
        """Returns what is added to attention scores [1, 1, T, rows]."""
        end = self._first
        bias = np.zeros((len(tree) - n_known, end + len(tree)), np.float32)
        if end > n_past:
            hidden = np.ones(end, np.bool_)
            hidden[self._places[:n_past]] = False
            bias[:, :end][:, hidden] = _MASKED
        if len(bias) > 1 or len(tree) > 1:
            bias[:, end:][~tree.ancestry()[n_known:]] = _MASKED
        return bias[np.newaxis, np.newaxis]
