"""Fused graphs: edgedec's own operators, KV cache written in place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
from onnxruntime import OrtValue

from edgedec import kernels
from edgedec.models.config import ModelConfig
from edgedec.models.errors import BundleError, ConfigError, SessionError
from edgedec.models.graph import KV_PANEL, LAYER_GATES, Capabilities, GraphContract
from edgedec.runtime.backends._binding import Binding, PassShape
from edgedec.runtime.backends._kv_cache import kv_row_nbytes
from edgedec.runtime.backends._layer_caches import LayerCaches
from edgedec.runtime.backends._ort import PassRunner, check_ports, open_graph
from edgedec.runtime.cores.affinity import Affinity
from edgedec.runtime.sessions.passes import Pass
from edgedec.runtime.sessions.rows import Rows
from edgedec.runtime.sessions.state import KVRows
from edgedec.runtime.sessions.token_tree import TokenTree

_MAX_BINDINGS = 128


class FusedModel:
    """A `Model` over a fused graph."""

    def __init__(
        self,
        graph: Path,
        config: ModelConfig,
        contract: GraphContract,
        threads: int,
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
        self.config = config
        self.contract = contract
        self._graph = graph
        self._affinity = affinity or Affinity()
        session = open_graph(
            graph, threads, contract.providers, kernels.library_path(), self._affinity
        )
        check_ports(graph, session, contract, config)
        _check_kv_cache(graph, contract, config)
        self._placed: dict[Affinity, onnxruntime.InferenceSession] = {self._affinity: session}
        self._is_closed = False

    @property
    def capabilities(self) -> Capabilities:
        return self.contract.can

    @property
    def is_movable(self) -> bool:
        return True

    @property
    def vocab_size(self) -> int:
        return self.config.n_logits

    @property
    def n_token_ids(self) -> int:
        return self.config.vocab_size

    @property
    def n_layers(self) -> int:
        return self.config.n_layers

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def new_cache(self, context: int) -> FusedKVCache:
        """Returns an empty KV cache; its memory is taken when it is first written to."""
        return FusedKVCache(self, context)

    def session(self, cores: Affinity | None) -> tuple[Affinity, onnxruntime.InferenceSession]:
        """Returns the graph on ``cores``, on its own when None, and which those are."""
        if self._is_closed:
            raise SessionError("the model is closed: load the bundle again")
        cores = cores or self._affinity
        if cores not in self._placed:
            n_threads, library = len(cores.processors), kernels.library_path()
            self._placed[cores] = open_graph(
                self._graph, n_threads, self.contract.providers, library, cores
            )
        return cores, self._placed[cores]

    def close(self) -> None:
        """Releases the graph."""
        self._is_closed = True
        self._placed.clear()


def open_model(
    graph: Path, config: ModelConfig, contract: GraphContract, threads: int, affinity: Affinity
) -> FusedModel:
    """Returns the model of ``graph``; raises a BundleError where it is not what is stated."""
    return FusedModel(graph, config, contract, threads, affinity)


class FusedKVCache:
    """A `KVCache` whose rows the graph writes in place.

    Layers with a window keep the latest rows only; see `LayerCaches`.

    Every input and output is bound once per shape of pass, to arrays that stay where they are: a
    decode step writes a few numbers and runs.
    """

    def __init__(self, model: FusedModel, context: int) -> None:
        self._model = model
        self._config = model.config
        self._caches = LayerCaches(model.config, context, model.contract.kv)
        self._layer_gates = np.ones(2 * model.config.n_layers, np.int64)
        self._runner = PassRunner()
        self._bindings: dict[tuple[Affinity, PassShape], Binding] = {}
        self._share()
        self._logits = np.empty((0, model.config.n_logits), np.float32)

    @property
    def look_back(self) -> int:
        return self._caches.look_back

    def nbytes(self, n_tokens: int) -> int:
        return self._caches.nbytes(n_tokens)

    def reaches(self, n_tokens: int) -> bool:
        return self._caches.reaches(n_tokens)

    def reserve(self, n_kept: int, stop: int) -> None:
        """Makes room; see `KVCache`. Where arrays move, all is bound anew."""
        if self._caches.reserve(n_kept, stop):
            self._bindings.clear()
            self._share()

    def forget_all(self) -> None:
        self._caches.forget_all()

    def compute(self, wanted: Pass, n_past: int, cores: Affinity | None) -> Rows:
        """Returns the asked rows. They are overwritten by the next pass of the same shape."""
        affinity, session = self._model.session(cores)
        self._set_gates(wanted)
        self._check_entry(wanted)
        has_logits = wanted.with_logits or not self._model.capabilities.row_stats
        shape = PassShape.of(wanted, has_logits, self._config.n_layers)
        binding = self._bound(affinity, session, shape)
        binding.fill(wanted, n_past)
        with affinity.held():
            self._runner.run(partial(session.run_with_iobinding, binding.io))
        rows = binding.rows
        return Rows(rows.logits, rows.hidden, rows.row_stats)

    @property
    def panels(self) -> dict[str, OrtValue]:
        """What the graph's inputs of keys and values are bound to."""
        return {name: self._shared_values[name] for name in self._caches.arrays}

    def keep(self, n_past: int, tree: TokenTree, path: Sequence[int]) -> None:
        """Moves the rows of ``path`` together behind the committed ones."""
        if path and path[-1] != len(path) - 1:  # a way down is rising, so it skips some row
            self._caches.compact(n_past, path)

    def rows(self, start: int, stop: int) -> KVRows:
        return self._caches.rows(start, stop)

    def load_rows(self, start: int, stop: int, kv_rows: KVRows) -> None:
        self._caches.load_rows(start, stop, kv_rows)

    def close(self) -> None:
        """Releases all arrays."""
        self._bindings.clear()
        self._shared_values.clear()
        self._caches = LayerCaches(self._config, 0, self._model.contract.kv)

    def _share(self) -> None:
        """Makes the inputs that all passes share."""
        shared = {**self._caches.arrays, LAYER_GATES: self._layer_gates}
        self._shared_values = {
            name: OrtValue.ortvalue_from_numpy(array)
            for name, array in shared.items()
            if name in self._model.contract.inputs
        }

    def _set_gates(self, wanted: Pass) -> None:
        """Opens the gates of the sub-layers that run."""
        if wanted.layer_gates is None:
            self._layer_gates.fill(1)
        else:
            self._layer_gates[:] = np.asarray(wanted.layer_gates, np.bool_)
        if wanted.layers is not None:
            self._layer_gates[: 2 * wanted.layers.start] = 0
            self._layer_gates[2 * wanted.layers.stop :] = 0

    def _check_entry(self, wanted: Pass) -> None:
        """Raises a SessionError where given hidden states are not as wide as the model's."""
        expected = (len(wanted.tree) - wanted.n_known, self._config.hidden_size)
        if wanted.entry is not None and wanted.entry.shape != expected:
            raise SessionError(
                f"the hidden states have the shape {wanted.entry.shape}, expected {expected}: a "
                "row of the model's width for each token of the pass"
            )

    def _bound(
        self, affinity: Affinity, session: onnxruntime.InferenceSession, shape: PassShape
    ) -> Binding:
        binding = self._bindings.get((affinity, shape))
        if binding is not None:
            return binding
        n_copied = shape.n_rows if shape.has_logits else 0
        if n_copied > len(self._logits) or len(self._bindings) >= _MAX_BINDINGS:
            self._bindings.clear()  # they hold the old, smaller array
        if n_copied > len(self._logits):
            self._logits = np.empty((n_copied, self._config.n_logits), np.float32)
        width = self._config.hidden_size
        rows = shape.empty_rows(self._logits, width, self._model.capabilities.row_stats)
        binding = Binding(session, shape, rows, self._shared_values, width)
        self._bindings[affinity, shape] = binding
        return binding


def _check_kv_cache(graph: Path, contract: GraphContract, config: ModelConfig) -> None:
    """Raises a BundleError unless the contract states which layers keep what of a token."""
    rings, windowed = contract.kv.ring_layers, config.windowed_layers
    if rings != windowed:
        raise BundleError(
            f"{graph} keeps the latest tokens only in the layers {list(rings)}, those with a "
            f"window are {list(windowed)}: export the model again"
        )
    row_nbytes = kv_row_nbytes(config, contract.kv.format)
    block_nbytes = row_nbytes * KV_PANEL // (2 * config.n_layers * config.n_kv_heads)
    stated = contract.kv.row_nbytes, contract.kv.block_nbytes
    if stated != (row_nbytes, block_nbytes):
        raise BundleError(
            f"{graph} keeps {row_nbytes} bytes of a token, in blocks of {block_nbytes}, the "
            f"manifest states {stated[0]} and {stated[1]}: export the model again"
        )
