"""OpenVINO graphs for devices that want all sizes to be known, as NPUs do.

Of the graph's states become inputs with room for the whole context, and outputs with the rows of a
pass, which are copied behind the others. A pass takes the smallest graph that its rows fit in, or
several; what is left over is hidden by the attention bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as ops

from edgedec.models.config import ModelConfig
from edgedec.models.errors import SessionError
from edgedec.models.graph import (
    ATTENTION_BIAS,
    BEAM_IDX,
    INPUT_IDS,
    LOGIT_ROWS,
    POSITION_IDS,
    GraphContract,
    past_port,
    present_port,
)
from edgedec.runtime.backends._kv_cache import lazy_zeros
from edgedec.runtime.backends._model_facts import ModelFacts
from edgedec.runtime.backends._openvino import (
    check_ports,
    compile_graph,
    read_graph,
    rows_of,
    run_pass,
)
from edgedec.runtime.backends._whole_cache import WholeCache
from edgedec.runtime.cores.affinity import Affinity
from edgedec.runtime.sessions.passes import Pass
from edgedec.runtime.sessions.row_stats import RowStats
from edgedec.runtime.sessions.rows import Rows
from edgedec.runtime.sessions.state import KVRows
from edgedec.runtime.sessions.token_tree import TokenTree

Array = npt.NDArray[Any]

_MASKED = np.float32(-3.0e38)


class Bucket(NamedTuple):
    """Sizes of a graph: rows, and those with logits."""

    n_rows: int
    n_logit_rows: int


BUCKETS = (Bucket(1, 1), Bucket(4, 4), Bucket(8, 8), Bucket(16, 16), Bucket(64, 1))
"""The last is for prompts."""

_MOST_LOGITS = max(BUCKETS, key=lambda bucket: bucket.n_logit_rows)


class Piece(NamedTuple):
    """Tokens of a tree that one graph computes, and of which logits are wanted."""

    bucket: Bucket
    tokens: range
    logit_rows: tuple[int, ...]


class StaticModel(ModelFacts):
    """A `Model` over one compiled graph for each size of pass, all for one context."""

    def __init__(
        self,
        graph: Path,
        config: ModelConfig,
        contract: GraphContract,
        threads: int,
        affinity: Affinity,
    ) -> None:
        super().__init__(config, contract)
        self.device, self.affinity = contract.providers[0], affinity
        self._graph, self._threads, self._is_closed = graph, threads, False
        self._compiled: dict[tuple[Bucket, int], ov.CompiledModel] = {}
        check_ports(graph, read_graph(graph), contract, config)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def new_cache(self, context: int) -> StaticKVCache:
        """Returns an empty KV cache; graphs are compiled when a pass first needs them."""
        return StaticKVCache(self, context)

    def new_request(self, bucket: Bucket, context: int) -> ov.InferRequest:
        """Returns a request of the graph for ``bucket``; a SessionError where it was released."""
        if self._is_closed:
            raise SessionError("the model is closed: load the bundle again")
        if (bucket, context) not in self._compiled:
            graph = static_graph(read_graph(self._graph), bucket, context)
            with self.affinity.held():
                self._compiled[bucket, context] = compile_graph(
                    graph, self.device, self.contract.kv.format, self._threads
                )
        return self._compiled[bucket, context].create_infer_request()

    def close(self) -> None:
        """Releases the graphs."""
        self._is_closed = True
        self._compiled.clear()


def static_graph(graph: ov.Model, bucket: Bucket, context: int) -> ov.Model:
    """Returns ``graph`` for the sizes of ``bucket`` after up to ``context`` tokens, without states.

    Keys and values of a layer [1, n_kv_heads, context, head_size] are an input, those of a pass an
    output; the graph joins them as it joins its state and them.
    """
    for sink in graph.get_sinks():
        whole, name = sink.input_value(0).get_node(), sink.get_variable_id()
        sizes = whole.output(0).partial_shape
        past = ops.parameter([1, sizes[1].get_length(), context, sizes[3].get_length()], np.float32)
        past.output(0).get_tensor().set_names({name})
        rows = ops.result(whole.input_value(1))
        rows.output(0).get_tensor().set_names({present_port(name)})
        whole.input(0).replace_source_output(past.output(0))
        graph.remove_sink(sink)
        graph.add_parameters([past])
        graph.add_results([rows])
    for variable in graph.get_variables():
        graph.remove_variable(variable)
    beam_idx = next(node for node in graph.get_parameters() if BEAM_IDX in node.output(0).names)
    graph.remove_parameter(beam_idx)
    n = bucket.n_rows
    graph.reshape({
        INPUT_IDS: [1, n],
        POSITION_IDS: [1, n],
        LOGIT_ROWS: [bucket.n_logit_rows],
        ATTENTION_BIAS: [1, 1, n, context + n],
    })  # fmt: skip
    return graph


class StaticKVCache(WholeCache):
    """A `KVCache` in the memory of the host, token i in row i, of which graphs read all rows.

    Shapes: each [1, n_kv_heads, context, head_size].
    """

    _model: StaticModel

    def __init__(self, model: StaticModel, context: int) -> None:
        self._model, self._context = model, context
        config = model.config
        shape = (1, config.n_kv_heads, context, config.head_size)
        self._arrays = {
            past_port(layer, part): lazy_zeros(shape, np.float32)
            for layer in range(config.n_layers)
            for part in ("key", "value")
        }
        self._dtype = np.dtype(model.contract.kv.format)
        self._requests: dict[Bucket, ov.InferRequest] = {}

    def compute(self, wanted: Pass, n_past: int, cores: Affinity | None) -> Rows:
        """Returns the asked rows, in memory of their own."""
        pieces = [*pieces_of(wanted)]
        parts = [self._compute(wanted, n_past, piece) for piece in pieces]
        found = [row for piece in pieces for row in piece.logit_rows]
        order = [found.index(row) for row in wanted.logit_rows]
        logits = np.concatenate([part.logits for part in parts])
        logits = logits[order] if wanted.with_logits else logits
        hidden = {
            layer: np.concatenate([part.hidden[layer] for part in parts])
            for layer in wanted.hidden_layers
        }
        if not self._model.capabilities.row_stats:
            return Rows(logits, hidden)
        stats = [vars(part.stats) for part in parts]
        joined = {name: np.concatenate([part[name] for part in stats])[order] for name in stats[0]}
        return Rows(logits, hidden, RowStats(**joined))

    def _compute(self, wanted: Pass, n_past: int, piece: Piece) -> Rows:
        """Returns the rows of ``piece``, its keys and values written behind the others."""
        request = self._request(piece.bucket)
        run_pass(request, self._inputs(wanted.tree, n_past, piece), self._model)
        n, start = len(piece.tokens), n_past + piece.tokens.start
        for name, array in self._arrays.items():
            array[:, :, start : start + n] = request.get_tensor(present_port(name)).data[:, :, :n]
        rows = rows_of(request, wanted, self._model.capabilities)
        k = len(piece.logit_rows)
        # Arrays of a piece are written anew by the next one of its size.
        hidden = {layer: values[:n].copy() for layer, values in rows.hidden.items()}
        stats = rows.row_stats and RowStats(**{
            name: values[:k].copy() for name, values in vars(rows.row_stats).items()
        })  # fmt: skip
        return Rows(rows.logits[:k].copy(), hidden, stats)

    def _request(self, bucket: Bucket) -> ov.InferRequest:
        if self._model.is_closed or bucket not in self._requests:
            self._requests[bucket] = self._model.new_request(bucket, self._context)
        return self._requests[bucket]

    def keep(self, n_past: int, tree: TokenTree, path: Sequence[int]) -> None:
        """Moves the rows of ``path`` behind those before the pass."""
        places = n_past + np.asarray(path, int)
        if len(path) and places[-1] != n_past + len(path) - 1:
            for array in self._arrays.values():
                array[:, :, n_past : n_past + len(path)] = array[:, :, places]

    def rows(self, start: int, stop: int) -> KVRows:
        return {
            name: array[:, :, start:stop].astype(self._dtype)
            for name, array in self._arrays.items()
        }

    def load_rows(self, start: int, stop: int, kv_rows: KVRows) -> None:
        for name, array in self._arrays.items():
            array[:, :, start:stop] = kv_rows[name]

    def close(self) -> None:
        """Releases arrays and requests."""
        self._requests.clear()
        self._arrays.clear()

    def _inputs(self, tree: TokenTree, n_past: int, piece: Piece) -> dict[str, Array]:
        n, tokens = piece.bucket.n_rows, piece.tokens
        rows = np.array(piece.logit_rows, np.int64) - tokens.start
        return {
            INPUT_IDS: _filled(tree.tokens[tokens.start : tokens.stop], n)[np.newaxis],
            POSITION_IDS: _filled(n_past + np.array(tree.depths[tokens.start : tokens.stop]), n)[
                np.newaxis
            ],
            LOGIT_ROWS: _filled(rows, piece.bucket.n_logit_rows),
            ATTENTION_BIAS: self._attention_bias(tree, n_past, piece),
            **self._arrays,
        }

    def _attention_bias(self, tree: TokenTree, n_past: int, piece: Piece) -> Array:
        """Returns what is added to attention scores [1, 1, rows, context + rows]."""
        n, (first, stop) = piece.bucket.n_rows, (piece.tokens.start, piece.tokens.stop)
        sees = np.zeros((n, self._context + n), np.bool_)
        sees[:, self._context :] = np.eye(n, dtype=np.bool_)  # also of rows that are no tokens
        m = stop - first
        sees[:m, :n_past] = True
        ancestry = tree.ancestry()[first:stop]
        sees[:m, n_past : n_past + first] = ancestry[:, :first]
        sees[:m, self._context : self._context + m] = ancestry[:, first:stop]
        return np.where(sees, np.float32(0), _MASKED)[np.newaxis, np.newaxis]


def pieces_of(wanted: Pass) -> Iterator[Piece]:
    """Yields the parts of a pass, each for the smallest graph that it fits in."""
    start, stop = wanted.n_known, len(wanted.tree)
    while start < stop:
        fitting = [bucket for bucket in BUCKETS if bucket.n_rows >= stop - start]
        for bucket in (*(fitting or BUCKETS[-1:]), _MOST_LOGITS):
            tokens = range(start, min(start + bucket.n_rows, stop))
            rows = tuple(row for row in wanted.logit_rows if row in tokens)
            if len(rows) <= bucket.n_logit_rows:
                break
        start = tokens.stop
        yield Piece(bucket, tokens, rows)


def _filled(values: Any, n: int) -> npt.NDArray[np.int64]:
    """Returns ``values``, and zeros behind them up to ``n``."""
    filled = np.zeros(n, np.int64)
    filled[: len(values)] = values
    return filled
