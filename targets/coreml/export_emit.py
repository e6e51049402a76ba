"""A recipe written down in MIL, the language of Core ML: one function for each size of pass.

Arithmetic is float16. Keys and values are state: [n_layers, n_kv_heads, rows, head_size], of which
a pass writes the rows from ``past_length`` on. What a row sees is said by the attention bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import coremltools as ct
import numpy as np
from coremltools.converters.mil import Builder
from coremltools.converters.mil.mil import Function, Program, Var, types

from edgedec.export.to_onnx.nbits import OFFSET_GROUP
from edgedec.models.blocks import Ops
from edgedec.models.config import ModelConfig
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.families import find_family
from edgedec.models.graph import (
    ATTENTION_BIAS,
    INPUT_IDS,
    LOGIT_ROWS,
    LOGITS,
    PAST_LENGTH,
    POSITION_IDS,
    hidden_port,
)
from edgedec.models.rope import rope_of
from edgedec.models.static_passes import (
    DECODE,
    SPARE_ROWS,
    STATIC_PASSES,
    StaticPass,
    coreml_port,
)
from edgedec.targets.coreml.export_weights import Weights

OPSET = ct.target.iOS18
"""The first with state, blocks of 4 bits and several functions: macOS 15."""

MASKED = -3.0e4
"""Bias of what a row does not see: no number that is added to it leaves float16."""

KEYS, VALUES = "keys", "values"
"""Names of the state."""

_MIN_SIZE = 1e-4
"""Rows smaller than that are no longer scaled up to be normed."""


def emit_mil(
    config: ModelConfig, context: int, weights: Weights, hidden_layers: Sequence[int] = ()
) -> Program:
    """Returns a program of the functions `STATIC_PASSES`.

    Args:
        context: positions; the state has `SPARE_ROWS` more.
        hidden_layers: layers (0: embeddings) whose residual stream becomes an output.

    Raises:
        UnsupportedModelError: It has experts.
    """
    if config.n_experts:
        raise UnsupportedModelError(
            f"--target coreml has no experts yet, and this model of the family {config.family} "
            f"has {config.n_experts}: export with --target cpu"
        )
    program = Program()
    for static in STATIC_PASSES:
        program.add_function(
            static.name, _function(config, context, weights, hidden_layers, static)
        )
    program.default_function_name = DECODE.name
    program.export_as_multifunction = True
    program.skip_all_passes = True  # the types are what they shall be
    return program


def state_shape(config: ModelConfig, context: int) -> tuple[int, int, int, int]:
    """Returns the shape of keys, and of values."""
    return config.n_layers, config.n_kv_heads, context + SPARE_ROWS, config.head_size


def _function(
    config: ModelConfig,
    context: int,
    weights: Weights,
    hidden_layers: Sequence[int],
    static: StaticPass,
) -> Function:
    kv_shape = state_shape(config, context)
    row = (1, static.n_rows)
    inputs = {
        INPUT_IDS: Builder.placeholder(row, dtype=types.int32),
        POSITION_IDS: Builder.placeholder(row, dtype=types.int32),
        PAST_LENGTH: Builder.placeholder((1,), dtype=types.int32),
        ATTENTION_BIAS: Builder.placeholder((1, *row, kv_shape[2]), dtype=types.fp16),
        LOGIT_ROWS: Builder.placeholder((static.n_logits,), dtype=types.int32),
        KEYS: Builder.state_tensor_placeholder(kv_shape, dtype=types.fp16),
        VALUES: Builder.state_tensor_placeholder(kv_shape, dtype=types.fp16),
    }
    with Function(inputs, opset_version=OPSET) as function:
        ops = MilEmitter(config, weights, frozenset(hidden_layers), function.inputs)
        logits = find_family(config.family).recipe(ops, config)
        outputs = ops.outputs()
        function.set_outputs([Builder.expand_dims(x=logits, axes=[0], name=LOGITS), *outputs])
    return function


class MilEmitter(Ops[Var]):
    """`Ops` over MIL values [T, features], in the function that is being built."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        hidden_layers: frozenset[int],
        inputs: dict[str, Var],
    ) -> None:
        self._config = config
        self._weights = weights
        self._hidden_layers = hidden_layers
        self._inputs = inputs
        self._hidden: list[Var] = []
        self._shared: dict[Any, Any] = {}
        self._state = {name: Builder.read_state(input=inputs[name]) for name in (KEYS, VALUES)}
        self._n_rows: int = inputs[INPUT_IDS].shape[1]
        self._ids = Builder.reshape(x=inputs[INPUT_IDS], shape=[self._n_rows])
        self._positions = Builder.reshape(x=inputs[POSITION_IDS], shape=[self._n_rows])

    def outputs(self) -> list[Var]:
        """Returns the hidden states that are outputs."""
        return self._hidden

    def embed(self, weight: str) -> Var:
        """Gathers rows of the matrix, and the offsets of their groups if there are any."""
        x = Builder.gather(x=self._weights.matrix(weight), indices=self._ids, axis=0)
        offsets = self._weights.offsets(weight)
        if offsets is None:
            return x
        wide = Builder.expand_dims(x=Builder.gather(x=offsets, indices=self._ids, axis=0), axes=[2])
        added = Builder.add(x=self._grouped(x), y=wide)
        return Builder.reshape(x=added, shape=[self._n_rows, x.shape[1]])

    def rms_norm(self, x: Var, weight: str) -> Var:
        """Norms rows that were divided by their largest number: squares stay within float16."""
        size = Builder.reduce_max(x=Builder.abs(x=x), axes=[-1], keep_dims=True)
        size = Builder.maximum(x=size, y=np.float16(_MIN_SIZE))
        scaled = Builder.real_div(x=x, y=size)
        mean = Builder.reduce_mean(x=Builder.mul(x=scaled, y=scaled), axes=[-1], keep_dims=True)
        least = Builder.real_div(x=np.float16(math.sqrt(self._config.rms_norm_eps)), y=size)
        root = Builder.sqrt(x=Builder.add(x=mean, y=Builder.mul(x=least, y=least)))
        return Builder.mul(x=Builder.real_div(x=scaled, y=root), y=self._weights.vector(weight))

    def head_norm(self, x: Var, weight: str) -> Var:
        """Norms each head, between two reshapes."""
        n_rows, width = x.shape
        heads = Builder.reshape(x=x, shape=[n_rows, -1, self._config.head_size])
        return Builder.reshape(x=self.rms_norm(heads, weight), shape=[n_rows, width])

    def linear(self, x: Var, weight: str, bias: str | None = None) -> Var:
        """Multiplies with the matrix; with the sums of groups where these have offsets."""
        more = {} if bias is None else {"bias": self._weights.vector(bias)}
        y = Builder.linear(x=x, weight=self._matrix(weight), **more)
        offsets = self._weights.offsets(weight)
        if offsets is None:
            return y
        return Builder.add(x=y, y=Builder.linear(x=self._group_sums(x), weight=offsets))

    def attention(self, q: Var, k: Var, v: Var, layer: int) -> Var:
        """Writes keys and values, and attends to all rows of the state under the bias."""
        c = self._config
        n, group = self._n_rows, c.n_heads // c.n_kv_heads
        heads = Builder.reshape(x=q, shape=[n, c.n_kv_heads, group, c.head_size])
        heads = self._rotate(heads, layer)
        queries = Builder.mul(
            x=Builder.transpose(x=heads, perm=[1, 2, 0, 3]), y=np.float16(c.product_scale)
        )
        queries = Builder.reshape(x=queries, shape=[c.n_kv_heads, group * n, c.head_size])
        keys = self._append(KEYS, self._rotate(self._kv_heads(k), layer), layer)
        values = self._append(VALUES, self._kv_heads(v), layer)
        scores = Builder.matmul(x=queries, y=keys, transpose_y=True)
        scores = Builder.reshape(x=scores, shape=[c.n_kv_heads, group, n, -1])
        if c.attention_softcap:
            scores = self.soft_cap(scores, c.attention_softcap)
        shares = Builder.softmax(
            x=Builder.add(x=scores, y=self._bias(c.layer(layer).window)), axis=-1
        )
        shares = Builder.reshape(x=shares, shape=[c.n_kv_heads, group * n, -1])
        attended = Builder.matmul(x=shares, y=values)
        attended = Builder.reshape(x=attended, shape=[c.n_kv_heads, group, n, c.head_size])
        return Builder.reshape(x=Builder.transpose(x=attended, perm=[2, 0, 1, 3]), shape=q.shape)

    def gate(self, gate: Var, up: Var) -> Var:
        """Multiplies the activation with what is gated."""
        if self._config.activation == "gelu_tanh":
            return Builder.mul(x=Builder.gelu(x=gate, mode="TANH_APPROXIMATION"), y=up)
        return Builder.mul(x=Builder.silu(x=gate), y=up)

    def experts(self, x: Var, router: Var, prefix: str) -> Var:
        """Is never called: `emit_mil` refuses models with experts."""
        raise AssertionError(prefix)

    def add(self, a: Var, b: Var) -> Var:
        """Adds."""
        return Builder.add(x=a, y=b)

    def scale(self, x: Var, factor: float) -> Var:
        """Multiplies by a constant."""
        return Builder.mul(x=x, y=np.float16(factor))

    def soft_cap(self, x: Var, bound: float) -> Var:
        """Bends between a division and a product."""
        bent = Builder.tanh(x=Builder.real_div(x=x, y=np.float16(bound)))
        return Builder.mul(x=bent, y=np.float16(bound))

    def select_rows(self, x: Var) -> Var:
        """Gathers the rows whose logits are asked for."""
        return Builder.gather(x=x, indices=self._inputs[LOGIT_ROWS], axis=0)

    def hidden(self, x: Var, layer: int) -> None:
        """Makes ``x`` an output, if ``layer`` is among the chosen."""
        if layer in self._hidden_layers:
            name = coreml_port(hidden_port(layer))
            self._hidden.append(Builder.expand_dims(x=x, axes=[0], name=name))

    def _matrix(self, name: str) -> Var:
        """Returns the matrix, which a tied head shares with the embedding."""
        return self._once(("matrix", name), lambda: self._weights.matrix(name))

    def _group_sums(self, x: Var) -> Var:
        """Returns the sums of groups of activations, which those that read ``x`` share."""
        return self._once(
            ("sums", x.name), lambda: Builder.reduce_sum(x=self._grouped(x), axes=[-1])
        )

    def _grouped(self, x: Var) -> Var:
        n_rows, width = x.shape
        return Builder.reshape(x=x, shape=[n_rows, width // OFFSET_GROUP, OFFSET_GROUP])

    def _kv_heads(self, x: Var) -> Var:
        c = self._config
        return Builder.reshape(x=x, shape=[self._n_rows, c.n_kv_heads, 1, c.head_size])

    def _rotate(self, x: Var, layer: int) -> Var:
        """Rotates channel i with channel i + head_size / 2 of [T, heads, group, head_size]."""
        rope = rope_of(self._config.layer(layer))
        if not rope.theta:
            return x
        cos, sin = self._once(("rope", rope), lambda: self._angles(self._weights.rope(rope)))
        low, high = Builder.split(x=x, num_splits=2, axis=-1)
        turned = (
            Builder.sub(x=Builder.mul(x=low, y=cos), y=Builder.mul(x=high, y=sin)),
            Builder.add(x=Builder.mul(x=high, y=cos), y=Builder.mul(x=low, y=sin)),
        )
        return Builder.concat(values=turned, axis=-1)

    def _angles(self, tables: tuple[Var, Var]) -> list[Var]:
        """Returns cosine and sine at the pass's positions [T, 1, 1, head_size / 2]."""
        rows = [Builder.gather(x=table, indices=self._positions, axis=0) for table in tables]
        return [Builder.expand_dims(x=x, axes=[1, 2]) for x in rows]

    def _append(self, name: str, rows: Var, layer: int) -> Var:
        """Returns all keys or values of ``layer`` after writing ``rows`` [T, heads, 1, size]."""
        c, past = self._config, self._inputs[PAST_LENGTH]
        end = self._once("end", lambda: Builder.add(x=past, y=np.int32(self._n_rows)))
        state = Builder.slice_update(
            x=self._state[name],
            update=Builder.transpose(x=rows, perm=[2, 1, 0, 3]),
            begin=Builder.concat(values=[[layer], [0], past, [0]], axis=0),
            end=Builder.concat(values=[[layer + 1], [c.n_kv_heads], end, [c.head_size]], axis=0),
        )
        state = Builder.coreml_update_state(state=self._inputs[name], value=state)
        self._state[name] = state
        first, last = [layer, 0, 0, 0], [layer + 1, *state.shape[1:]]
        return Builder.squeeze(x=Builder.slice_by_index(x=state, begin=first, end=last), axes=[0])

    def _bias(self, window: int) -> Var:
        """Returns the attention bias that also hides what lies before a window, 0 for none.

        What a row sees lies in order, in the state as in a tree: it is the last ``window``.
        """
        bias = self._inputs[ATTENTION_BIAS]
        if not window:
            return bias

        def windowed() -> Var:
            sees = Builder.cast(x=Builder.greater(x=bias, y=np.float16(MASKED / 2)), dtype="int32")
            place = Builder.cumsum(x=sees, axis=-1, reverse=True)
            outside = Builder.greater(x=place, y=np.int32(window))
            return Builder.select(cond=outside, a=np.float16(MASKED), b=bias)

        return self._once(("window", window), windowed)

    def _once(self, key: Any, make: Any) -> Any:
        """Returns what ``make`` returned when it was first called for ``key``."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]
