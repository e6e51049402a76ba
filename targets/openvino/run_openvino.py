"""OpenVINO graphs, on any of its devices: keys and values in states of an inference request.

A pass appends its rows to the states, and nothing takes them back: what is not kept stays where it
is, hidden from later passes by the attention bias, until there is much of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from edgedec.models.errors import SessionError
from edgedec.models.graph import (
    ATTENTION_BIAS,
    BEAM_IDX,
    INPUT_IDS,
    LOGIT_ROWS,
)
from edgedec.runtime.backends.model_facts import GraphToRun
from edgedec.runtime.backends.whole_cache import WholeCache
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.state import KVRows
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.targets.openvino.run_graph import (
    PlacedModel,
    check_ports,
    read_graph,
    rows_of,
    run_pass,
)
from edgedec.targets.openvino.run_static import StaticModel

Array = npt.NDArray[Any]

STATIC_DEVICES = ("NPU",)
"""Devices that take graphs whose sizes are known."""

_MASKED = np.float32(-3.0e38)  # -inf would turn rows without any valid position into NaN
_MAX_HIDDEN_ROWS = 128
"""Rows of tokens that were not kept, before those that were are moved together."""


class OpenVinoModel(PlacedModel):
    """A `Model` over a graph that OpenVINO compiled for a device."""

    def __init__(self, graph: GraphToRun) -> None:
        super().__init__(graph)
        opened = read_graph(graph.path)
        check_ports(graph.path, opened, graph.contract, graph.config)
        self._compiled: ov.CompiledModel | None = self.compiled(opened)

    @property
    def is_closed(self) -> bool:
        return self._compiled is None

    def new_request(self) -> ov.InferRequest:
        """Returns a request with states of its own; a SessionError where the graph was released."""
        if self._compiled is None:
            raise SessionError("the model is closed: load the bundle again")
        return self._compiled.create_infer_request()

    def new_state(self, context: int) -> OpenVinoKVCache:
        """Returns an empty KV cache; its memory grows with the text."""
        return OpenVinoKVCache(self)

    def close(self) -> None:
        """Releases the graph."""
        self._compiled = None


def open_model(graph: GraphToRun) -> OpenVinoModel | StaticModel:
    """Returns the model of ``graph``; raises a BundleError where it is not what is stated."""
    is_static = graph.contract.providers[0] in STATIC_DEVICES
    return StaticModel(graph) if is_static else OpenVinoModel(graph)


class OpenVinoKVCache(WholeCache):
    """A `SequenceState` of the states of a request, by the names of their variables.

    Shapes: each [1, n_kv_heads, rows, head_size]; committed token i has row ``self._places[i]``.
    """

    _model: OpenVinoModel

    def __init__(self, model: OpenVinoModel) -> None:
        self._model = model
        self._request = model.new_request()
        self._states = {state.name: state for state in self._request.query_state()}
        self._dtype = np.dtype(model.contract.kv.format)
        self._places = np.zeros(0, np.int64)
        self._pending = np.zeros(0, np.int64)  # rows of the tokens of the pending pass
        self._n_rows = 0
        self._is_torn = False
        """A pass failed: some states may have its rows, others not."""

    def reserve(self, n_kept: int, stop: int) -> None:
        """Nothing to do: states grow by themselves."""

    def truncate(self, n_tokens: int) -> None:
        """Empties all states if no token is left."""
        if n_tokens == 0:
            self._put({})

    def run(self, pass_: Pass) -> Rows:
        """Returns the asked rows. They are overwritten by the next pass."""
        if not pass_.logit_rows:  # not all operators take arrays without rows
            rows = self.run(pass_._replace(logit_rows=(len(pass_.tree) - 1,)))
            return Rows(rows.logits[:0], rows.hidden, rows.stats.part(slice(0)))
        n_past = pass_.n_past
        if not pass_.n_known:
            self._drop_behind(n_past)
        n_new = len(pass_.tree) - pass_.n_known
        new = np.arange(self._n_rows, self._n_rows + n_new)
        self._pending = np.append(self._pending[: pass_.n_known], new)
        self._is_torn = True
        run_pass(self._request, self._inputs(pass_, n_past), self._model)
        self._is_torn = False
        self._n_rows += n_new
        return rows_of(self._request, pass_, self._model.capabilities)

    def commit(self, n_past: int, tree: TokenTree, path: Sequence[int]) -> None:
        """Notes where the rows of ``path`` are."""
        self._places = np.append(self._places[:n_past], self._pending[np.asarray(path, int)])

    def snapshot(self, start: int, stop: int) -> KVRows:
        if start == stop:
            config = self._model.config
            empty = np.zeros((1, config.n_kv_heads, 0, config.head_size), self._dtype)
            return dict.fromkeys(self._states, empty)
        return self._taken(self._places[start:stop])

    def restore(self, start: int, stop: int, kv_rows: KVRows) -> None:
        before = self.snapshot(0, start)
        self._put({
            name: np.concatenate([before[name], rows], axis=2) for name, rows in kv_rows.items()
        })  # fmt: skip
        self._places = np.arange(stop)

    def close(self) -> None:
        """Releases the request with its states."""
        self._states.clear()
        del self._request

    def _drop_behind(self, n_past: int) -> None:
        """Forgets where later tokens are; moves rows together where many are hidden."""
        self._places = self._places[:n_past]
        if self._is_torn or self._n_rows - n_past > _MAX_HIDDEN_ROWS:
            self._put(self._taken(self._places) if n_past else {})
            self._places = np.arange(n_past)

    def _taken(self, places: npt.NDArray[np.int64]) -> KVRows:
        """Returns copies of the rows ``places``."""
        return {
            name: state.state.data[:, :, places].astype(self._dtype, copy=False)
            for name, state in self._states.items()
        }

    def _put(self, rows: KVRows) -> None:
        """Makes ``rows`` all that the states hold."""
        self._is_torn = True
        if not rows:
            self._request.reset_state()
        for name, array in rows.items():
            self._states[name].state = ov.Tensor(np.ascontiguousarray(array, np.float32))
        self._n_rows = next(iter(rows.values())).shape[2] if rows else 0
        self._is_torn = False

    def _inputs(self, pass_: Pass, n_past: int) -> dict[str, Array]:
        tree, n_known = pass_.tree, pass_.n_known
        positions = n_past + np.array(tree.depths[n_known:], np.int64)
        return {
            **self._model.rows_at(positions),
            INPUT_IDS: np.array([tree.tokens[n_known:]], np.int64),
            LOGIT_ROWS: np.array(pass_.logit_rows, np.int64) - n_known,
            ATTENTION_BIAS: self._attention_bias(tree, n_known),
            BEAM_IDX: np.zeros(1, np.int32),
        }

    def _attention_bias(self, tree: TokenTree, n_known: int) -> Array:
        """Returns what is added to attention scores [1, 1, T, rows]."""
        n_new = len(tree) - n_known
        bias = np.full((n_new, self._n_rows + n_new), _MASKED)
        bias[:, self._places] = 0
        if len(tree) == 1:
            bias[:, -1] = 0
        else:
            bias[:, self._pending] = np.where(tree.ancestry()[n_known:], np.float32(0), _MASKED)
        return bias[np.newaxis, np.newaxis]
