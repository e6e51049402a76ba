"""OpenVINO graphs for devices that want all sizes to be known, as NPUs do.

The graph's states become inputs with room for the whole context, and outputs with the rows of a
pass; `edgedec.runtime.backends.static_cache` says how passes are cut into them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as ops

from edgedec.models.errors import SessionError
from edgedec.models.graph import (
    ATTENTION_BIAS,
    BEAM_IDX,
    INPUT_IDS,
    LOGIT_ROWS,
    POSITION_IDS,
    past_port,
    present_port,
)
from edgedec.models.static_passes import StaticPass
from edgedec.runtime.backends.kv_cache import lazy_zeros
from edgedec.runtime.backends.model_facts import GraphToRun
from edgedec.runtime.backends.static_cache import BucketPart, PartInputs, StaticKVCache
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.row_stats import RowStats
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.targets.openvino.run_graph import (
    PlacedModel,
    check_ports,
    read_graph,
    rows_of,
    run_pass,
)

Array = npt.NDArray[Any]

_MASKED = np.float32(-3.0e38)


class StaticModel(PlacedModel):
    """A `Model` over one compiled graph for each size of pass, all for one context."""

    def __init__(self, graph: GraphToRun) -> None:
        super().__init__(graph)
        self._graph, self._is_closed = graph.path, False
        self._compiled: dict[tuple[StaticPass, int], ov.CompiledModel] = {}
        check_ports(graph.path, read_graph(graph.path), graph.contract, graph.config)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def new_state(self, context: int) -> OpenVinoStaticKVCache:
        """Returns an empty KV cache; graphs are compiled when a pass first needs them."""
        return OpenVinoStaticKVCache(self, context)

    def new_request(self, bucket: StaticPass, context: int) -> ov.InferRequest:
        """Returns a request of the graph for ``bucket``; a SessionError where it was released."""
        if self._is_closed:
            raise SessionError("the model is closed: load the bundle again")
        if (bucket, context) not in self._compiled:
            graph = static_graph(read_graph(self._graph), bucket, context, self.tables.sizes)
            self._compiled[bucket, context] = self.compiled(graph)
        return self._compiled[bucket, context].create_infer_request()

    def close(self) -> None:
        """Releases the graphs."""
        self._is_closed = True
        self._compiled.clear()


def static_graph(
    graph: ov.Model,
    bucket: StaticPass,
    context: int,
    tables: Mapping[str, tuple[int | None, ...]],
) -> ov.Model:
    """Returns ``graph`` for the sizes of ``bucket`` after up to ``context`` tokens, without states.

    tables: sizes of those that it takes rows of.
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
    if any(port.any_name == POSITION_IDS for port in graph.inputs):
        graph.reshape({POSITION_IDS: [1, n]})
    graph.reshape({
        **{name: [n, width] for name, (_, width) in tables.items()},
        INPUT_IDS: [1, n],
        LOGIT_ROWS: [bucket.n_logits],
        ATTENTION_BIAS: [1, 1, n, context + n],
    })  # fmt: skip
    return graph


class OpenVinoStaticKVCache(StaticKVCache):
    """A `SequenceState` whose rows go into every pass.

    Shapes: each [1, n_kv_heads, context, head_size].
    """

    _model: StaticModel

    def __init__(self, model: StaticModel, context: int) -> None:
        self._model = model
        config = model.config
        shape = (1, config.n_kv_heads, context, config.head_size)
        arrays = {
            past_port(layer, part): lazy_zeros(shape, np.float32)
            for layer in range(config.n_layers)
            for part in ("key", "value")
        }
        super().__init__(context, arrays, np.dtype(model.contract.kv.format))
        self._requests: dict[StaticPass, ov.InferRequest] = {}

    def _compute(self, pass_: Pass, n_past: int, part: BucketPart) -> Rows:
        request = self._request(part.bucket)
        run_pass(request, self._inputs(pass_.tree, n_past, part), self._model)
        new = {name: request.get_tensor(present_port(name)).data for name in self._kv_rows}
        self._write(n_past + part.tokens.start, new, len(part.tokens))
        rows = rows_of(request, pass_, self._model.capabilities)
        n, k = len(part.tokens), len(part.logit_rows)
        # Arrays of a part are written anew by the next one of its size.
        hidden = {layer: values[:n].copy() for layer, values in rows.hidden.items()}
        stats = rows.row_stats and RowStats(**{
            name: values[:k].copy() for name, values in vars(rows.row_stats).items()
        })  # fmt: skip
        return Rows(rows.logits[:k].copy(), hidden, stats)

    def _request(self, bucket: StaticPass) -> ov.InferRequest:
        if self._model.is_closed or bucket not in self._requests:
            self._requests[bucket] = self._model.new_request(bucket, self._context)
        return self._requests[bucket]

    def close(self) -> None:
        """Releases arrays and requests."""
        self._requests.clear()
        super().close()

    def _inputs(self, tree: TokenTree, n_past: int, part: BucketPart) -> dict[str, Array]:
        inputs = PartInputs.of(tree, n_past, part)
        sees = self._visible(tree, n_past, part)
        return {
            **self._model.rows_at(inputs.positions[0]),
            INPUT_IDS: inputs.ids,
            LOGIT_ROWS: inputs.logit_rows,
            ATTENTION_BIAS: np.where(sees, np.float32(0), _MASKED)[np.newaxis, np.newaxis],
            **self._kv_rows,
        }
