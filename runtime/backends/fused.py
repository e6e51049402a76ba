"""Sessions over fused graphs: edgedec's own operators, KV cache written in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime import OrtValue

from edgedec import kernels
from edgedec.models.config import ModelConfig
from edgedec.models.errors import BundleError, ConfigError, SessionError
from edgedec.models.graph import N_TOP, KVFormat
from edgedec.runtime.backends.kv_cache import PanelKVCache
from edgedec.runtime.backends.ort import NO_GATES, one_line, open_graph
from edgedec.runtime.cores.affinity import Affinity
from edgedec.runtime.sessions.row_stats import RowStats
from edgedec.runtime.sessions.session import Rows, TokenLedger, TokenTree
from edgedec.runtime.sessions.state import SessionState

_MAX_BINDINGS = 128


class FusedSession:
    """A `ModelSession` over a fused graph.

    Every input and output is bound once per shape of pass, to arrays that stay where they are: a
    decode step writes a few numbers and runs.
    """

    def __init__(
        self,
        graph: Path,
        config: ModelConfig,
        threads: int,
        context: int,
        affinity: Affinity | None = None,
    ) -> None:
        if not kernels.has_library():
            raise BundleError(
                f"{graph} needs edgedec's kernels, which this installation lacks: reinstall "
                "edgedec with a C++ compiler present, or export with a portable graph"
            )
        try:
            kernels.active_isa()
        except RuntimeError as error:  # EDGEDEC_ISA, most likely
            raise ConfigError(str(error)) from None
        self._graph = graph
        self._affinity = self._own_affinity = affinity or Affinity()
        self._session: onnxruntime.InferenceSession | None = open_graph(
            graph, threads, kernels.library_path(), self._affinity
        )
        self._own_session: onnxruntime.InferenceSession | None = self._session
        self._placed: dict[Affinity, onnxruntime.InferenceSession] = {}
        self._config = config
        self._ledger = TokenLedger(context)
        self.kv_format = _kv_format(self._session)
        self._kv_cache = PanelKVCache(config, context, self.kv_format)
        self._layer_gates = np.ones(2 * config.n_layers, np.int64)
        shared = {
            "k_cache": self._kv_cache.keys,
            "v_cache": self._kv_cache.values,
            "layer_gates": self._layer_gates,
        }
        inputs = {value.name for value in self._session.get_inputs()}
        outputs = {value.name for value in self._session.get_outputs()}
        self._shared_values = {
            name: OrtValue.ortvalue_from_numpy(array)
            for name, array in shared.items()
            if name in inputs
        }
        self._has_stats = "stats.argmax" in outputs
        self._bindings: dict[tuple[Affinity, _PassShape], _Binding] = {}
        self._logits = np.empty((0, config.n_logits), np.float32)

    @property
    def tokens(self) -> Sequence[int]:
        """The committed tokens."""
        return self._ledger.tokens

    @property
    def n_tokens(self) -> int:
        return len(self._ledger.tokens)

    @property
    def context(self) -> int:
        return self._ledger.context

    @property
    def vocab_size(self) -> int:
        return self._config.n_logits

    @property
    def nbytes(self) -> int:
        """Bytes of KV cache that committed tokens occupy."""
        return self.n_tokens * self._kv_cache.row_nbytes

    @property
    def is_closed(self) -> bool:
        return self._session is None

    def forward(
        self,
        tree: TokenTree,
        logit_rows: Sequence[int],
        hidden_layers: Sequence[int] = (),
        *,
        n_known: int = 0,
        with_logits: bool = True,
        layer_gates: Sequence[bool] | None = None,
    ) -> Rows:
        """Returns the asked rows. They are overwritten by the next pass of the same shape."""
        session = self._session
        if session is None:
            raise SessionError("the session is closed: load the bundle again")
        self._ledger.check_room(tree)
        self._ledger.check_known(tree, n_known)
        is_gated = self._set_gates(layer_gates)
        has_logits = with_logits or not self._has_stats
        shape = _PassShape(
            len(tree.tokens), n_known, len(logit_rows), has_logits, tuple(hidden_layers)
        )
        binding = self._bound(session, shape)
        binding.fill(tree, len(self._ledger.tokens), logit_rows)
        self._ledger.pending = None
        try:
            with self._affinity.held():
                session.run_with_iobinding(binding.io)
        except Exception as error:
            raise SessionError(f"ONNX Runtime could not run the model: {one_line(error)}") from None
        self._ledger.expect(tree, n_known, is_gated)
        return replace(binding.rows)

    def commit(self, path: Sequence[int]) -> None:
        """Keeps the rows of ``path``, moved together behind the committed ones."""
        tree = self._ledger.check_path(path)
        if path and path[-1] != len(path) - 1:  # a way down is rising, so it skips some row
            self._kv_cache.compact(len(self._ledger.tokens), path)
        self._ledger.accept(tree, path)

    def truncate(self, n_tokens: int) -> None:
        """Forgets every committed token after the first ``n_tokens``."""
        self._ledger.check_truncate(n_tokens)
        self._ledger.truncate(n_tokens)

    def snapshot(self, n_tokens: int | None = None, start: int = 0) -> SessionState:
        """Returns copies of the rows of tokens ``start`` to ``n_tokens``; to the last when None."""
        n_tokens = self._ledger.check_snapshot(n_tokens, start)
        return SessionState(
            tuple(self.tokens[:n_tokens]), start, self._kv_cache.rows(start, n_tokens)
        )

    def restore(self, state: SessionState) -> None:
        """Makes the tokens of ``state`` the committed ones, as if they had been computed."""
        if self._session is None:
            raise SessionError("the session is closed: load the bundle again")
        self._ledger.check_state(state, self.snapshot(0).layout, self._config.vocab_size)
        self._ledger.truncate(state.start)  # an interrupt must not leave tokens with others' rows
        self._kv_cache.load_rows(state.start, state.kv_rows)
        self._ledger.tokens.extend(state.tokens[state.start :])

    def place(self, cores: Affinity | None) -> None:
        """Runs passes with one thread on each of ``cores`` from now on; None: as when opened.

        The KV cache stays, and so do logits to the last bit. The first time takes as long as
        opening the graph, whose weights are in memory already.
        """
        if self._own_session is None:
            raise SessionError("the session is closed: load the bundle again")
        if cores is None or cores == self._own_affinity:
            self._session, self._affinity = self._own_session, self._own_affinity
            return
        if cores not in self._placed:
            n_threads, library = len(cores.processors), kernels.library_path()
            self._placed[cores] = open_graph(self._graph, n_threads, library, cores)
        self._session, self._affinity = self._placed[cores], cores

    def close(self) -> None:
        """Releases the model and its KV cache."""
        self._session = self._own_session = None
        self._placed.clear()
        self._bindings.clear()
        self._ledger.truncate(0)

    def _set_gates(self, layer_gates: Sequence[bool] | None) -> bool:
        """Returns whether sub-layers are left out."""
        if layer_gates is None:
            self._layer_gates.fill(1)
            return False
        if "layer_gates" not in self._shared_values:
            raise SessionError(NO_GATES)
        if len(layer_gates) != len(self._layer_gates):
            raise SessionError(
                f"got {len(layer_gates)} layer gates, expected {len(self._layer_gates)}, two for "
                "each layer"
            )
        self._layer_gates[:] = np.asarray(layer_gates, np.bool_)
        return not self._layer_gates.all()

    def _bound(self, session: onnxruntime.InferenceSession, shape: _PassShape) -> _Binding:
        binding = self._bindings.get((self._affinity, shape))
        if binding is not None:
            return binding
        n_copied = shape.n_rows if shape.has_logits else 0
        if n_copied > len(self._logits) or len(self._bindings) >= _MAX_BINDINGS:
            self._bindings.clear()  # they hold the old, smaller array
        if n_copied > len(self._logits):
            self._logits = np.empty((n_copied, self._config.n_logits), np.float32)
        width = self._config.hidden_size
        n_new = shape.n_tokens - shape.n_known
        hidden = {i: np.empty((n_new, width), np.float32) for i in shape.hidden_layers}
        stats = _empty_stats(shape.n_rows) if self._has_stats else None
        rows = Rows(self._logits[:n_copied], hidden, stats)
        binding = _Binding(session, shape, rows, self._shared_values)
        self._bindings[self._affinity, shape] = binding
        return binding


def _kv_format(session: onnxruntime.InferenceSession) -> KVFormat:
    """Returns the format of the KV cache that the graph reads and writes."""
    types = {value.name: value.type for value in session.get_inputs()}
    return "int8" if types.get("k_cache") == "tensor(uint8)" else "float16"


class _PassShape(NamedTuple):
    """What decides the sizes of a pass's arrays."""

    n_tokens: int
    n_known: int
    n_rows: int
    has_logits: bool
    hidden_layers: tuple[int, ...]


class _Binding:
    """Arrays of one shape of pass, bound to the graph's inputs and outputs."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        shape: _PassShape,
        rows: Rows,
        shared_values: dict[str, OrtValue],
    ) -> None:
        self.rows = rows
        self._n_known = shape.n_known
        n_new = shape.n_tokens - shape.n_known
        self._ids = np.zeros((1, n_new), np.int64)
        self._positions = np.zeros((1, n_new), np.int64)
        self._parents = np.zeros((1, shape.n_tokens), np.int64)
        self._past_length = np.zeros(1, np.int64)
        self._logit_rows = np.zeros(shape.n_rows, np.int64)
        inputs: dict[str, npt.NDArray[Any]] = {
            "input_ids": self._ids,
            "position_ids": self._positions,
            "parents": self._parents,
            "past_length": self._past_length,
            "logit_rows": self._logit_rows,
        }
        # The graph's rows have a batch axis, its statistics do not.
        outputs: dict[str, npt.NDArray[Any]] = {
            f"hidden.{i}": array[np.newaxis] for i, array in rows.hidden.items()
        }
        if shape.has_logits:
            outputs["logits"] = rows.logits[np.newaxis]
        if rows.row_stats is not None:
            outputs |= {f"stats.{name}": array for name, array in vars(rows.row_stats).items()}
        self.io = session.io_binding()
        for name, array in inputs.items():
            self.io.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(array))
        for name, value in shared_values.items():
            self.io.bind_ortvalue_input(name, value)
        for name, array in outputs.items():
            self.io.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy(array))

    def fill(self, tree: TokenTree, n_past: int, logit_rows: Sequence[int]) -> None:
        """Writes the inputs of a pass over ``tree`` after ``n_past`` committed tokens."""
        self._past_length[0] = n_past
        if len(tree.tokens) == 1:
            self._ids[0, 0] = tree.tokens[0]
            self._positions[0, 0] = n_past
            self._parents[0, 0] = -1
        else:
            self._ids[0] = tree.tokens[self._n_known :]
            self._positions[0] = tree.depths[self._n_known :]
            self._positions += n_past
            self._parents[0] = tree.parents
        if logit_rows:
            self._logit_rows[:] = logit_rows
            self._logit_rows -= self._n_known


def _empty_stats(n_rows: int) -> RowStats:
    return RowStats(
        argmax=np.empty(n_rows, np.int64),
        log_sum_exp=np.empty(n_rows, np.float32),
        entropy=np.empty(n_rows, np.float32),
        top_ids=np.empty((n_rows, N_TOP), np.int64),
        top_logits=np.empty((n_rows, N_TOP), np.float32),
    )
