"""Graphs of standard operators, whose KV cache goes in and comes out of each pass.

Two dialects: edgedec's portable graph takes an additive attention mask, so it runs trees;
graphs of optimum-onnx take a mask of valid positions and run chains only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from edgedec.models.config import ModelConfig
from edgedec.models.errors import SessionError
from edgedec.models.graph import (
    ATTENTION_BIAS,
    ATTENTION_MASK,
    INPUT_IDS,
    LOGIT_ROWS,
    LOGITS,
    POSITION_IDS,
    SOURCE_BIAS,
    hidden_port,
    present_port,
)
from edgedec.runtime.backends.encoder import SourceRows
from edgedec.runtime.backends.graph_checks import check_recurrent_layers
from edgedec.runtime.backends.model_facts import GraphToRun, ModelFacts
from edgedec.runtime.backends.ort import PassRunner, check_ports, open_graph
from edgedec.runtime.backends.portable_recurrence import PortableRecurrence
from edgedec.runtime.backends.recurrent import RecurrentState
from edgedec.runtime.sequences.model import SequenceState
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.state import KVRows
from edgedec.runtime.sequences.token_tree import TokenTree

_MASKED = np.float32(-3.0e38)  # -inf would turn rows without any valid position into NaN
Array = npt.NDArray[Any]
_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class PortableModel(ModelFacts):
    """A `Model` over a portable or optimum graph. Runs everywhere, copies a lot."""

    def __init__(self, graph: GraphToRun) -> None:
        super().__init__(graph)
        config, contract = graph.config, graph.contract
        self._session: onnxruntime.InferenceSession | None = open_graph(
            graph.path, graph.threads, contract.providers, affinity=self.affinity
        )
        check_ports(graph.path, self._session, contract, config)
        check_recurrent_layers(graph.path, contract, config)
        nodes = {node.name: node for node in self._session.get_inputs()}
        self._empty = {
            name: np.zeros(_empty_shape(nodes[name], config), _DTYPES[nodes[name].type])
            for name in contract.past_ports
        }

    @property
    def is_closed(self) -> bool:
        return self._session is None

    def new_state(self, context: int) -> PortableKVCache:
        """Returns an empty KV cache, which grows as it is needed."""
        return PortableKVCache(self, dict(self._empty))

    def run(self, outputs: list[str], inputs: dict[str, Array]) -> dict[str, Array]:
        """Returns the graph's ``outputs`` by name.

        Raises:
            SessionError: ONNX Runtime refuses, or the model is closed.
        """
        if self._session is None:
            raise SessionError("the model is closed: load the bundle again")
        with self.affinity.held():
            values = PassRunner().run(partial(self._session.run, outputs, inputs))
        return dict(zip(outputs, values, strict=True))

    def close(self) -> None:
        """Releases the graph."""
        self._session = None


def open_model(graph: GraphToRun) -> PortableModel:
    """Returns the model of ``graph``; raises a BundleError where it is not what is stated."""
    return PortableModel(graph)


class PortableKVCache:
    """A `SequenceState` of arrays by the names of the graph's inputs.

    Shapes: each [1, n_kv_heads, n, head_size], n at least the number of committed tokens.
    """

    def __init__(self, model: PortableModel, past: dict[str, Array]) -> None:
        self._model = model
        self._past = past
        self._present: dict[str, Array] = {}
        kv = model.contract.kv
        self._recurrence = PortableRecurrence(model.config, kv) if kv.recurrent_layers else None
        self._row_nbytes: int = sum(
            rows.itemsize * rows.shape[1] * rows.shape[3] for rows in past.values()
        )

    @property
    def _recurrent(self) -> RecurrentState | None:
        return None if self._recurrence is None else self._recurrence.state

    @property
    def look_back(self) -> int:
        return 0 if self._recurrent is None else self._recurrent.look_back

    @property
    def checkpoints(self) -> tuple[int, ...]:
        return () if self._recurrent is None else self._recurrent.checkpoints.tokens

    def nbytes(self, n_tokens: int) -> int:
        n_bytes = n_tokens * self._row_nbytes
        return n_bytes if self._recurrent is None else n_bytes + self._recurrent.nbytes(n_tokens)

    def reachable(self, n_tokens: int) -> int:
        """Returns all of them: layers with a window keep all rows, too; recurrent ones do not."""
        return n_tokens if self._recurrent is None else self._recurrent.reachable(n_tokens)

    def resting(self, n_tokens: int) -> int:
        return n_tokens if self._recurrent is None else self._recurrent.resting(n_tokens)

    def share(self, other: SequenceState, n_tokens: int) -> bool:
        """Returns False: each text has memory of its own."""
        return False

    def reserve(self, n_kept: int, stop: int) -> None:
        """Makes room in recurrent layers; arrays of the others grow with each pass."""
        if self._recurrent is not None:
            self._recurrent.reserve(n_kept, stop)

    def truncate(self, n_tokens: int) -> None:
        """Cuts rows of recurrent layers; those of others are cut by each pass."""
        if self._recurrent is not None:
            self._recurrent.truncate(n_tokens)

    def run(self, pass_: Pass) -> Rows:
        """Returns the asked rows, in arrays of their own."""
        n_past = pass_.n_past
        logit_rows = [row - pass_.n_known for row in pass_.logit_rows]
        presents = {name: present_port(name) for name in self._past}
        hidden = {layer: hidden_port(layer) for layer in pass_.hidden_layers}
        outputs = [LOGITS, *hidden.values(), *presents.values()]
        inputs = self._inputs(pass_, n_past, logit_rows)
        if self._recurrence is not None:
            inputs |= self._recurrence.inputs(pass_.tree, n_past, pass_.n_known)
            outputs += self._recurrence.outputs
        results = self._model.run(outputs, inputs)
        if self._recurrence is not None:
            self._recurrence.take(results, n_past, pass_.tree, pass_.n_known)
        self._present = {name: results[present] for name, present in presents.items()}
        logits = results[LOGITS][0].astype(np.float32, copy=False)
        if LOGIT_ROWS not in self._model.contract.inputs:
            logits = logits[logit_rows]
        return Rows(logits, {layer: results[name][0] for layer, name in hidden.items()})

    def take_source(self, rows: SourceRows) -> None:
        """Takes what an encoder made of a source; see `SourceState`."""
        self._present = dict(rows)

    def commit(self, n_past: int, tree: TokenTree, path: Sequence[int]) -> None:
        """Takes the rows of ``path`` over."""
        if len(path) != len(tree) or not tree.is_chain:
            kept = [*range(n_past), *(n_past + i for i in path)]
            self._present = {name: rows[:, :, kept] for name, rows in self._present.items()}
        self._past = self._present
        if self._recurrent is not None:
            self._recurrent.commit(n_past, tree, path)

    def snapshot(self, start: int, stop: int) -> KVRows:
        kv_rows = {name: rows[:, :, start:stop].copy() for name, rows in self._past.items()}
        return kv_rows if self._recurrent is None else {**kv_rows, **self._recurrent.snapshot(stop)}

    def restore(self, start: int, stop: int, kv_rows: KVRows) -> None:
        self._past = {
            name: np.concatenate([rows[:, :, :start], kv_rows[name]], axis=2)
            for name, rows in self._past.items()
        }
        if self._recurrent is not None:
            self._recurrent.restore(stop, kv_rows)

    def close(self) -> None:
        """Releases all arrays."""
        self._past, self._present = {}, {}

    def _inputs(self, pass_: Pass, n_past: int, logit_rows: Sequence[int]) -> dict[str, Array]:
        tree, n_known, names = pass_.tree, pass_.n_known, self._model.contract.inputs
        source = self._present if n_known else self._past
        inputs: dict[str, Array] = {
            name: np.ascontiguousarray(rows[:, :, : n_past + n_known])
            for name, rows in source.items()
        }
        inputs |= self._model.tables.up_to(n_past + len(tree))
        inputs[INPUT_IDS] = np.array([tree.tokens[n_known:]], np.int64)
        if POSITION_IDS in names:
            inputs[POSITION_IDS] = np.array([tree.positions(n_past)[n_known:]], np.int64)
        if LOGIT_ROWS in names:
            inputs[LOGIT_ROWS] = np.array(logit_rows, np.int64)
        if ATTENTION_BIAS in names:
            inputs[ATTENTION_BIAS] = _attention_bias(tree, n_past)[:, :, n_known:]
        if SOURCE_BIAS in names:
            n_source = pass_.sequence.n_source
            inputs[ATTENTION_BIAS][..., :n_source] = _MASKED
            of_source = np.zeros_like(inputs[ATTENTION_BIAS])
            of_source[..., n_source:] = _MASKED
            inputs[SOURCE_BIAS] = of_source
        if ATTENTION_MASK in names:
            inputs[ATTENTION_MASK] = np.ones((1, n_past + len(tree)), np.int64)
        return inputs


def _attention_bias(tree: TokenTree, n_past: int) -> npt.NDArray[np.float32]:
    """Returns what is added to attention scores. Shapes: [1, 1, T, n_past + T] float32."""
    n_tokens = len(tree)
    bias = np.zeros((1, 1, n_tokens, n_past + n_tokens), np.float32)
    bias[0, 0, :, n_past:][~tree.ancestry()] = _MASKED
    return bias


def _empty_shape(node: Any, config: ModelConfig) -> tuple[int, int, int, int]:
    """Returns the shape of a KV input before any token; the graph's own sizes come first."""
    n_heads, head_size = node.shape[1], node.shape[3]
    return (
        1,
        n_heads if isinstance(n_heads, int) else config.n_kv_heads,
        0,
        head_size if isinstance(head_size, int) else config.head_size,
    )
