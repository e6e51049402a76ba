"""The graph that OpenVINO compiles: a recipe written down in its operators.

Its ports are those of `edgedec.models.graph`. Keys and values are states of the graph, one pair for
each layer, to which every pass appends its rows: what the plugins for CPU and GPU keep in memory
of their own and grow in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from edgedec.models.blocks import Ops
from edgedec.models.config import ModelConfig
from edgedec.models.families import find_family
from edgedec.models.graph import (
    ATTENTION_BIAS,
    BEAM_IDX,
    INPUT_IDS,
    LOGIT_ROWS,
    LOGITS,
    N_TOP,
    hidden_port,
    past_port,
    stats_port,
)
from edgedec.models.rope import Rope, rope_names, rope_of
from edgedec.targets.openvino.export_stored import Constants, StoredWeights

Value: TypeAlias = Any  # an output of a node, [1, T, features]

MASKED = -3.0e38
_ANY = -1


def emit_openvino(
    config: ModelConfig, weights: StoredWeights, constants: Constants, hidden_layers: Sequence[int]
) -> ov.Model:
    """Returns the graph, its constants in the memory of ``constants``.

    hidden_layers: layers (0: embeddings) whose residual stream becomes an output.
    """
    emitter = OpenVinoEmitter(config, weights, constants, frozenset(hidden_layers))
    return emitter.model()


class OpenVinoEmitter(Ops[Value]):
    """`Ops` over outputs of nodes."""

    def __init__(
        self,
        config: ModelConfig,
        weights: StoredWeights,
        constants: Constants,
        hidden_layers: frozenset[int],
    ) -> None:
        self._config = config
        self._groups = weights.groups
        self._stored = constants
        self._hidden_layers = hidden_layers
        self._outputs: dict[str, Value] = {}
        self._sinks: list[Any] = []
        self._shared: dict[Any, Any] = {}
        self._inputs = {
            name: ops.parameter(sizes, element, name)
            for name, sizes, element in (
                (INPUT_IDS, [1, _ANY], np.int64),
                (ATTENTION_BIAS, [1, 1, _ANY, _ANY], np.float32),
                (LOGIT_ROWS, [_ANY], np.int64),
                (BEAM_IDX, [1], np.int32),
            )
        }

    def model(self) -> ov.Model:
        """Returns the graph of the family's recipe."""
        logits = find_family(self._config.family).recipe(self, self._config)
        self._outputs = {LOGITS: logits, **self._outputs}
        if self._config.n_logits >= N_TOP:
            self._outputs |= _row_stats(logits)
        results = []
        for name, value in self._outputs.items():
            result = ops.result(value)
            result.output(0).get_tensor().set_names({name})
            results.append(result)
        inputs = [*self._inputs.values()]
        for name, parameter in self._inputs.items():
            parameter.output(0).get_tensor().set_names({name})
        return ov.Model(results, self._sinks, inputs, self._config.family)

    def embed(self, weight: str) -> Value:
        """Adds a Gather of rows; a float matrix lies transposed."""
        if weight in self._groups:
            return ops.gather(self._matrix(weight), self._inputs[INPUT_IDS], 0)
        columns = ops.gather(self._matrix(weight), self._inputs[INPUT_IDS], 1)
        return ops.transpose(columns, [1, 2, 0])

    def rms_norm(self, x: Value, weight: str) -> Value:
        """Adds the operators of a norm, which plugins fuse."""
        squares = ops.reduce_mean(ops.power(x, _float(2)), [_ANY], keep_dims=True)
        root = ops.sqrt(ops.add(squares, _float(self._config.rms_norm_eps)))
        return ops.multiply(ops.multiply(x, ops.divide(_float(1), root)), self._stored.get(weight))

    def head_norm(self, x: Value, weight: str) -> Value:
        """Adds a norm over each head, between two reshapes."""
        heads = ops.reshape(x, [0, 0, _ANY, self._config.head_size], True)
        return ops.reshape(self.rms_norm(heads, weight), [0, 0, _ANY], True)

    def linear(self, x: Value, weight: str, bias: str | None = None) -> Value:
        """Adds a MatMul, and an Add of the bias."""
        y = ops.matmul(x, self._matrix(weight), False, weight in self._groups)
        return y if bias is None else ops.add(y, self._stored.get(bias))

    def attention(self, q: Value, k: Value, v: Value, layer: int) -> Value:
        """Adds rotations, the layer's states and an attention over them."""
        config, rope = self._config, rope_of(self._config.layer(layer))
        queries = self._rotated(self._heads(q, config.n_heads), rope)
        keys = self._rotated(self._heads(k, config.n_kv_heads), rope)
        values = self._heads(v, config.n_kv_heads)
        keys = self._of_all_heads(self._appended(keys, past_port(layer, "key")))
        values = self._of_all_heads(self._appended(values, past_port(layer, "value")))
        bias = self._bias(config.layer(layer).window)
        if config.attention_softcap:
            attended = self._capped_attention(queries, keys, values, bias)
        else:
            scale = _float(config.product_scale)
            attended = ops.scaled_dot_product_attention(queries, keys, values, bias, scale)
        rows = ops.transpose(attended, [0, 2, 1, 3])
        return ops.reshape(rows, [0, 0, config.n_heads * config.head_size], True)

    def gate(self, gate: Value, up: Value) -> Value:
        """Adds the activation, and what is to be multiplied."""
        if self._config.activation == "gelu_tanh":
            return ops.multiply(ops.gelu(gate, "tanh"), up)
        return ops.multiply(ops.swish(gate), up)

    def experts(self, x: Value, router: Value, prefix: str) -> Value:
        """Adds the MLPs of all experts [E, T, ...], and the sum of what a TopK leaves of them."""
        gate = self.linear(x, f"{prefix}.gate_proj.weight")
        up = self.linear(x, f"{prefix}.up_proj.weight")
        down = self.linear(self.gate(gate, up), f"{prefix}.down_proj.weight")
        return ops.reduce_sum(ops.multiply(down, self._routed(router)), [0], keep_dims=True)

    def add(self, a: Value, b: Value) -> Value:
        """Adds an Add."""
        return ops.add(a, b)

    def scale(self, x: Value, factor: float) -> Value:
        """Adds a Multiply by a constant."""
        return ops.multiply(x, _float(factor))

    def soft_cap(self, x: Value, bound: float) -> Value:
        """Adds a Tanh between a Divide and a Multiply by a constant."""
        return ops.multiply(ops.tanh(ops.divide(x, _float(bound))), _float(bound))

    def select_rows(self, x: Value) -> Value:
        """Adds a Gather of the rows whose logits are asked for."""
        return ops.gather(x, self._inputs[LOGIT_ROWS], 1)

    def hidden(self, x: Value, layer: int) -> None:
        """Makes ``x`` an output, if ``layer`` is among the chosen."""
        if layer in self._hidden_layers:
            self._outputs[hidden_port(layer)] = x

    def _matrix(self, name: str) -> Value:
        """Returns a matrix: of groups [n, k], computed of its constants; of floats [k, n]."""
        layout = self._groups.get(name)
        if layout is None:
            return self._stored.get(name)
        if name not in self._shared:
            weights = ops.convert(self._stored.get(f"{name}.codes"), np.float32)
            if layout.format.has_minimum:
                weights = ops.subtract(weights, self._stored.get(f"{name}.zero_points"))
            weights = ops.multiply(weights, self._stored.get(f"{name}.scales"))
            self._shared[name] = ops.reshape(weights, [layout.n, layout.k], False)
        return self._shared[name]

    def _heads(self, x: Value, n_heads: int) -> Value:
        """Returns ``x`` as [1, n_heads, T, head_size]."""
        split = ops.reshape(x, [0, 0, n_heads, self._config.head_size], True)
        return ops.transpose(split, [0, 2, 1, 3])

    def _rotated(self, x: Value, rope: Rope) -> Value:
        """Returns ``x`` with channel i rotated against channel i + head_size / 2."""
        if not rope.theta:
            return x
        half = self._config.head_size // 2
        cos, sin = self._rope(rope)
        low, high = ops.variadic_split(x, 3, [half, _ANY]).outputs()
        turned = ops.concat([ops.multiply(high, _float(-1)), low], _ANY)
        return ops.add(ops.multiply(x, cos), ops.multiply(turned, sin))

    def _rope(self, rope: Rope) -> tuple[Value, Value]:
        """Returns cosines and sines [1, 1, T, head_size], which layers share."""
        if rope not in self._shared:
            sizes = [_ANY, self._config.head_size // 2]
            halves = [
                self._inputs.setdefault(name, ops.parameter(sizes, np.float32, name))
                for name in rope_names(self._config, rope)
            ]
            self._shared[rope] = tuple(
                ops.unsqueeze(ops.concat([half, half], _ANY), [0, 1]) for half in halves
            )
        cos, sin = self._shared[rope]
        return cos, sin

    def _appended(self, rows: Value, name: str) -> Value:
        """Returns all rows of the state ``name`` after appending those of this pass.

        The Gather, by the row of the batch, is what the plugins know a KV cache by.
        """
        sizes = [1, self._config.n_kv_heads, _ANY, self._config.head_size]
        empty = ops.constant(np.zeros([max(size, 0) for size in sizes], np.float32))
        state = ops.read_value(empty, name, ov.Type.f32, ov.PartialShape(sizes))
        past = ops.gather(state, self._inputs[BEAM_IDX], 0)
        whole = ops.concat([past, rows], 2)
        self._sinks.append(ops.assign(whole, name))
        return whole

    def _of_all_heads(self, rows: Value) -> Value:
        """Returns keys or values once for each head that reads them."""
        config = self._config
        n_readers = config.n_heads // config.n_kv_heads
        if n_readers == 1:
            return rows
        wide = ops.broadcast(
            ops.unsqueeze(rows, 2), [1, 1, n_readers, 1, 1], broadcast_spec="BIDIRECTIONAL"
        )
        return ops.reshape(wide, [0, config.n_heads, _ANY, config.head_size], True)

    def _capped_attention(self, q: Value, k: Value, v: Value, bias: Value) -> Value:
        """Returns an attention whose products of queries and keys bend towards a bound."""
        config = self._config
        scores = self.scale(ops.matmul(q, k, False, True), config.product_scale)
        capped = ops.add(self.soft_cap(scores, config.attention_softcap), bias)
        return ops.matmul(ops.softmax(capped, _ANY), v, False, False)

    def _bias(self, window: int) -> Value:
        """Returns the attention bias that also hides what lies before a window, 0 for none.

        What a row sees lies in order, in the states as in a tree: it is the last ``window``.
        """
        bias = self._inputs[ATTENTION_BIAS]
        if not window:
            return bias
        if ("window", window) not in self._shared:
            sees = ops.convert(ops.greater(bias, _float(-1)), np.float32)
            place = ops.cum_sum(sees, 3, reverse=True)
            outside = ops.greater(place, _float(window))
            self._shared["window", window] = ops.select(outside, _float(MASKED), bias)
        return self._shared["window", window]

    def _routed(self, router: Value) -> Value:
        """Returns what every expert counts for [E, T, 1], nothing for most."""
        config = self._config
        scores = ops.softmax(router, _ANY)
        top = ops.topk(scores, config.n_experts_used, _ANY, "max", "value", "i64")
        weights = top.output(0)
        if config.is_routing_normed:
            weights = ops.divide(weights, ops.reduce_sum(weights, [_ANY], keep_dims=True))
        nothing = self.scale(scores, 0)
        spread = ops.scatter_elements_update(nothing, top.output(1), weights, _ANY)
        return ops.transpose(spread, [2, 1, 0])


def _float(value: float) -> Any:
    return ops.constant(np.float32(value))


def _row_stats(logits: Value) -> dict[str, Value]:
    """Returns the statistics of logits [1, R, V], by port."""
    rows = ops.squeeze(logits, 0)
    top = ops.topk(rows, N_TOP, 1, "max", "value", "i64", stable=True)
    first = ops.gather(top.output(1), 0, 1)
    largest = ops.gather(top.output(0), [0], 1)
    shifted = ops.subtract(rows, largest)
    weights = ops.exp(shifted)
    total = ops.reduce_sum(weights, [1], keep_dims=True)
    mean = ops.divide(ops.reduce_sum(ops.multiply(weights, shifted), [1], keep_dims=True), total)
    log_total = ops.log(total)
    stats = {
        "argmax": first,
        "log_sum_exp": ops.squeeze(ops.add(log_total, largest), 1),
        "entropy": ops.squeeze(ops.subtract(log_total, mean), 1),
        "top_ids": top.output(1),
        "top_logits": top.output(0),
    }
    return {stats_port(name): value for name, value in stats.items()}
