"""What backends share whose graphs write the KV cache in place, with edgedec's operators."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from edgedec.kernels import cpu, library
from edgedec.models.config import ModelConfig
from edgedec.models.errors import BundleError, ConfigError, SessionError
from edgedec.models.graph import (
    BUNDLED_KERNELS,
    KV_PARTS,
    LAYER_GATES,
    GraphContract,
    KVLayout,
    past_port,
)
from edgedec.models.kv_formats import kv_block_nbytes, kv_panels_of, kv_row_nbytes
from edgedec.runtime.backends.graph_checks import check_recurrent_layers
from edgedec.runtime.backends.kv_cache import Array, PanelArena
from edgedec.runtime.backends.layer_caches import LayerArenas, LayerCaches
from edgedec.runtime.backends.model_facts import GraphToRun, ModelFacts
from edgedec.runtime.sequences.model import SequenceState
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.rows import Float32, MtpRows, Rows
from edgedec.runtime.sequences.state import KVRows
from edgedec.runtime.sequences.token_tree import TokenTree

if TYPE_CHECKING:  # few models have them
    from edgedec.runtime.backends.encoder import SourceRows
    from edgedec.runtime.backends.recurrent import RecurrentState

_log = logging.getLogger(__name__)


class Runs(Protocol):
    """Runs of a graph over the same memory for keys and values."""

    def run(self, passes: Sequence[Pass]) -> Rows:
        """Returns the asked rows of all passes, which the next run may overwrite."""


T = TypeVar("T")
R = TypeVar("R", bound=Runs)


class InPlaceModel(ModelFacts, Generic[T, R]):
    """A `Model`, but for how its graph runs.

    ``T`` is what runs passes, ``R`` what runs them over some memory.
    """

    def __init__(self, graph: GraphToRun) -> None:
        bundled = graph.path.parents[1] / BUNDLED_KERNELS
        if not library.has_library() and bundled.is_file():
            from edgedec.runtime.backends.trust import check_trusted

            check_trusted(bundled)
            library.lend_library(bundled)
        if not library.has_library():
            raise BundleError(
                f"{graph.path} needs edgedec's kernels, which this installation lacks: reinstall "
                "edgedec with a C++ compiler present, or export with a portable graph"
            )
        try:
            cpu.active_isa()
        except RuntimeError as error:  # EDGEDEC_ISA, most likely
            raise ConfigError(str(error)) from None
        _warn_of_slow_kernels()
        super().__init__(graph)
        self._arenas: WeakSet[LayerArenas] = WeakSet()
        self._opened: T | None = None
        self._shared_runs: WeakKeyDictionary[PanelArena, R] = WeakKeyDictionary()
        self.is_closed = False

    @property
    def opened(self) -> T:
        """What runs passes.

        Raises:
            SessionError: The model is closed.
        """
        if self._opened is None:
            raise SessionError("the model is closed: load the bundle again")
        return self._opened

    def new_caches(self, context: int) -> LayerCaches:
        """Returns room for a text, among others of the same context if any."""
        for arenas in list(self._arenas):
            if arenas.context == context and (text := arenas.take()) is not None:
                return LayerCaches(arenas, text)
        arenas = LayerArenas.largest(self.config, context, self.contract.kv)
        self._arenas.add(arenas)
        return _first_of(arenas)

    def compute(self, passes: Sequence[Pass]) -> list[Rows]:
        """Returns the rows of each pass; those that can be are computed as one. See `Model`."""
        if len(passes) == 1:
            return [passes[0].sequence.state.run(passes[0])]
        groups: dict[object, list[int]] = {}
        for i, pass_ in enumerate(passes):
            groups.setdefault(_kind(pass_) or i, []).append(i)
        rows_of: dict[int, Rows] = {}
        for group in groups.values():
            together = [passes[i] for i in group]
            run = self.compute_together if len(group) > 1 else super().compute
            rows_of |= zip(group, run(together), strict=True)
        return [rows_of[i] for i in range(len(passes))]

    def compute_together(self, passes: Sequence[Pass]) -> list[Rows]:
        """Returns the rows of passes of several sequences of the same arenas, in one run."""
        caches = caches_of(passes[0])
        whole = caches.arenas[0]
        runs = self._shared_runs.get(whole)
        if runs is None:
            runs = self.new_runs(shared_inputs(self.contract, caches))
            self._shared_runs[whole] = runs
        return split_rows(runs.run(passes), passes)

    def new_state(self, context: int) -> InPlaceKVCache[R]:
        """Returns an empty KV cache; its memory is taken when it is first written to."""
        return InPlaceKVCache(self, context)

    def new_runs(self, shared_inputs: Mapping[str, Array]) -> R:
        """Returns what runs passes whose inputs of these names stay the same."""
        raise NotImplementedError

    def close(self) -> None:
        """Releases the graph."""
        self.is_closed = True
        self._opened = None


def _recurrent_state(config: ModelConfig, kv: KVLayout) -> RecurrentState | None:
    """Returns what recurrent layers keep; None where a model has none."""
    if not config.recurrent_layers:
        return None
    from edgedec.runtime.backends.recurrent import RecurrentState

    return RecurrentState(config, kv)


class InPlaceKVCache(Generic[R]):
    """A `SequenceState` whose rows the graph writes in place.

    Layers with a window keep the latest rows only; see `LayerCaches`. So do recurrent ones; see
    `RecurrentState`.
    """

    def __init__(self, model: InPlaceModel[Any, R], context: int) -> None:
        config, kv = model.config, model.contract.kv
        self._model = model
        self.caches = model.new_caches(context)
        self.recurrent = _recurrent_state(config, kv)
        self._layer_gates = np.ones(2 * config.n_layers, np.int64)
        self._has_closed = False  # gates, by the latest pass
        self._bind_anew()

    @property
    def config(self) -> ModelConfig:
        """Of the model whose rows these are."""
        return self._model.config

    @property
    def shared_inputs(self) -> dict[str, Array]:
        """The arrays of the inputs that are the same in all passes, by port."""
        shared = shared_inputs(self._model.contract, self.caches, self._layer_gates)
        return shared if self.recurrent is None else {**shared, **self.recurrent.arrays}

    @property
    def look_back(self) -> int:
        return self.caches.look_back if self.recurrent is None else self.recurrent.look_back

    @property
    def checkpoints(self) -> tuple[int, ...]:
        return () if self.recurrent is None else self.recurrent.checkpoints.tokens

    def nbytes(self, n_tokens: int) -> int:
        n_bytes = self.caches.nbytes(n_tokens)
        return n_bytes if self.recurrent is None else n_bytes + self.recurrent.nbytes(n_tokens)

    def reachable(self, n_tokens: int) -> int:
        n_left = self.caches.reachable(n_tokens)
        return n_left if self.recurrent is None else self.recurrent.reachable(n_left)

    def resting(self, n_tokens: int) -> int:
        return n_tokens if self.recurrent is None else self.recurrent.resting(n_tokens)

    def reserve(self, n_kept: int, stop: int) -> None:
        """Makes room; see `SequenceState`. Where arrays move, all is bound anew."""
        has_moved = self.caches.reserve(n_kept, stop)
        if self.recurrent is not None:
            has_moved |= self.recurrent.reserve(n_kept, stop)
        if has_moved:
            self._bind_anew()

    def truncate(self, n_tokens: int) -> None:
        self.caches.truncate(n_tokens)
        if self.recurrent is not None:
            self.recurrent.truncate(n_tokens)

    def share(self, other: SequenceState, n_tokens: int) -> bool:
        """Makes the first tokens of another text those of this one; see `SequenceState`."""
        if not isinstance(other, InPlaceKVCache) or other.resting(n_tokens) != n_tokens:
            return False
        is_shared = self.caches.share(other.caches, n_tokens)
        if is_shared and self.recurrent is not None and other.recurrent is not None:
            self.recurrent.restore(n_tokens, other.recurrent.snapshot(n_tokens))
        return is_shared

    def commit(self, n_past: int, tree: TokenTree, path: Sequence[int]) -> None:
        """Moves the rows of ``path`` together behind the committed ones."""
        if list(path) != list(range(len(path))):
            self.caches.compact(n_past, path)
        if self.recurrent is not None:
            self.recurrent.commit(n_past, tree, path)

    def take_source(self, rows: SourceRows) -> None:
        """Takes what an encoder made of a source; see `SourceState`."""
        by_layer = self._model.config.kv_layers
        keys, values = (
            np.concatenate([rows[past_port(i, part)] for i in by_layer]) for part in KV_PARTS
        )
        kv_rows = kv_panels_of(self._model.contract.kv.format).rows_of(keys, values)
        self.caches.load_rows(0, keys.shape[2], kv_rows)

    def snapshot(self, start: int, stop: int) -> KVRows:
        kv_rows = self.caches.rows(start, stop)
        return kv_rows if self.recurrent is None else {**kv_rows, **self.recurrent.snapshot(stop)}

    def restore(self, start: int, stop: int, kv_rows: KVRows) -> None:
        self.caches.load_rows(start, stop, kv_rows)
        if self.recurrent is not None:
            self.recurrent.restore(stop, kv_rows)

    def close(self) -> None:
        """Gives all memory back."""
        self.caches.close()
        self.caches = _first_of(LayerArenas(self._model.config, 0, self._model.contract.kv, 1))
        self._bind_anew()

    def run(self, pass_: Pass) -> Rows:
        """Returns the asked rows; see `Runs`."""
        has_closed = pass_.layer_gates is not None or pass_.layers is not None
        if has_closed or self._has_closed:
            self._has_closed = has_closed
            self._set_gates(pass_)
        if pass_.entry is not None:
            self._check_entry(pass_, pass_.entry)
        if self.recurrent is None:
            return self._runs.run((pass_,))
        self.recurrent.begin(pass_.n_past, pass_.tree)
        rows = self._runs.run((pass_,))
        self.recurrent.finish(pass_.n_past)
        return rows

    def _bind_anew(self) -> None:
        """Forgets what refers to arrays of `shared_inputs`, which are others now."""
        self._runs = self._model.new_runs(self.shared_inputs)

    def _check_entry(self, pass_: Pass, entry: Float32) -> None:
        """Raises a SessionError unless the hidden states of a pass are as wide as the model's."""
        expected = (len(pass_.tree) - pass_.n_known, self._model.config.hidden_size)
        if entry.shape != expected:
            raise SessionError(
                f"the hidden states have the shape {entry.shape}, expected {expected}: a "
                "row of the model's width for each token of the pass"
            )

    def _set_gates(self, pass_: Pass) -> None:
        """Opens the gates of the sub-layers that run."""
        self._layer_gates[:] = 1 if pass_.layer_gates is None else np.bool_(pass_.layer_gates)
        if pass_.layers is not None:
            self._layer_gates[: 2 * pass_.layers.start] = 0
            self._layer_gates[2 * pass_.layers.stop :] = 0


def _first_of(arenas: LayerArenas) -> LayerCaches:
    """Returns the rows of a first text."""
    text = arenas.take()
    assert text is not None
    return LayerCaches(arenas, text)


def _kind(pass_: Pass) -> object:
    """Returns what passes must have in common to run as one; None if it runs alone."""
    if pass_.layer_gates is not None or pass_.layers is not None:
        return None
    return caches_of(pass_).arenas


def caches_of(pass_: Pass) -> LayerCaches:
    """Returns the keys and values of the sequence of a pass."""
    state = pass_.sequence.state
    assert isinstance(state, InPlaceKVCache)
    return state.caches


def shared_inputs(
    contract: GraphContract, caches: LayerCaches, layer_gates: Array | None = None
) -> dict[str, Array]:
    """Returns the arrays of the inputs that are the same in all passes, by port.

    layer_gates: all are open when None.
    """
    if layer_gates is None:
        layer_gates = np.ones(2 * caches.n_layers, np.int64)
    shared = {**caches.arrays, LAYER_GATES: layer_gates}
    return {name: array for name, array in shared.items() if name in contract.inputs}


def split_rows(rows: Rows, passes: Sequence[Pass]) -> list[Rows]:
    """Returns the part of each of ``passes`` in the rows of all; views."""
    parts, first_row, first_token, first_mtp = [], 0, 0, 0
    for pass_ in passes:
        n_tokens, n_rows = len(pass_.tree) - pass_.n_known, len(pass_.logit_rows)
        of_pass = slice(first_row, first_row + n_rows)
        tokens = slice(first_token, first_token + n_tokens)
        has_logits = pass_.with_logits or rows.row_stats is None
        mtp = rows.mtp if pass_.with_mtp else None
        if mtp is not None:
            its = slice(first_mtp, first_mtp + n_rows)
            mtp = MtpRows(mtp.ids[its], mtp.log_probs[its])
            first_mtp += n_rows
        parts.append(
            Rows(
                rows.logits[of_pass] if has_logits else rows.logits[:0],
                {layer: rows.hidden[layer][tokens] for layer in pass_.hidden_layers},
                None if rows.row_stats is None else rows.row_stats.part(of_pass),
                mtp=mtp,
            )
        )
        first_row, first_token = of_pass.stop, tokens.stop
    return parts


def check_kv_cache(graph: Path, contract: GraphContract, config: ModelConfig) -> None:
    """Raises a BundleError unless the contract states which layers keep what of a token."""
    check_recurrent_layers(graph, contract, config)
    rings, windowed = contract.kv.ring_layers, config.windowed_layers
    if rings != windowed:
        raise BundleError(
            f"{graph} keeps the latest tokens only in the layers {list(rings)}, those with a "
            f"window are {list(windowed)}: export the model again"
        )
    row_nbytes = kv_row_nbytes(config, contract.kv.format)
    block_nbytes = kv_block_nbytes(config, contract.kv.format)
    sizes = contract.kv.row_nbytes, contract.kv.block_nbytes
    if sizes != (row_nbytes, block_nbytes):
        raise BundleError(
            f"{graph} keeps {row_nbytes} bytes of a token, in blocks of {block_nbytes}, the "
            f"manifest states {sizes[0]} and {sizes[1]}: export the model again"
        )


@functools.cache
def _warn_of_slow_kernels() -> None:
    """Says once that this processor has no kernels of its own."""
    if cpu.available_isas() == ("scalar",):
        _log.warning(
            "this processor has none of the instruction sets that edgedec has kernels for: "
            "models give the same text, but many times slower"
        )
