"""A recipe written down for Qualcomm's NPUs: fixed sizes, every activation a 16-bit code.

Without ranges of activations the graph is one of floats, whose values are measured on texts; with
them each value passes through a QuantizeLinear and a DequantizeLinear, from which the compiler
takes the types of its operators. Keys lie transposed [1, n_kv_heads, head_size, tokens].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgedec.export.to_onnx.make import (
    array_of,
    make_graph,
    make_model,
    make_node,
    make_opset,
    make_port,
    set_entries,
    tensor_of,
)
from edgedec.export.to_onnx.messages import ModelProto, NodeProto, TensorProto, ValueInfoProto
from edgedec.models.blocks import Ops
from edgedec.models.config import ModelConfig
from edgedec.models.families import find_family
from edgedec.models.graph import (
    ATTENTION_BIAS,
    INPUT_IDS,
    LOGIT_ROWS,
    LOGITS,
    POSITION_IDS,
    past_port,
    present_port,
)
from edgedec.models.rope import Rope, rope_of
from edgedec.models.static_passes import SCALE_KEYS, StaticPass
from edgedec.targets.qnn.export_stored import Codes, StoredWeights, wide_scale

OPSET, IR_VERSION = 23, 11

SCORES = ".scores"
"""How names of attention scores end."""

STREAM = ".added"
"""How names of the residual stream end."""

HIDDEN_SHARE = 16.0
"""What a row does not see is put that far below the least score: its share is e to minus that."""

Range = tuple[float, float]
Ranges = Mapping[str, Range]
"""Least and largest number of each measured value, by its name."""


def emit_qdq(
    config: ModelConfig,
    context: int,
    weights: StoredWeights,
    static: StaticPass,
    ranges: Ranges | None = None,
) -> ModelProto:
    """Returns the graph of ``static``; one of floats, to be measured, without ``ranges``.

    context: rows of keys and values that go in.
    """
    emitter = QdqEmitter(config, context, weights, static, ranges)
    logits = find_family(config.family).recipe(emitter, config)
    emitter.add_output(logits, LOGITS, (1, static.n_logits, config.n_logits))
    model = emitter.model()
    if ranges is not None:
        scales = dict(zip(SCALE_KEYS, map(repr, emitter.scale_of(logits)), strict=True))
        set_entries(model.metadata_props, scales)
    return model


def mask_of(ranges: Ranges) -> float:
    """Returns what is subtracted from the scores of what a row does not see."""
    spans = [high - low for name, (low, high) in ranges.items() if name.endswith(SCORES)]
    return max(spans) + HIDDEN_SHARE


class QdqEmitter(Ops[str]):
    """`Ops` over names of graph values, each [1, T, features]."""

    def __init__(
        self,
        config: ModelConfig,
        context: int,
        weights: StoredWeights,
        static: StaticPass,
        ranges: Ranges | None,
    ) -> None:
        self._config, self._weights, self._static = config, weights, static
        self._ranges = ranges
        self._nodes: list[NodeProto] = []
        self._constants: dict[str, TensorProto] = {}
        self._read: set[str] = set()  # names of stored tensors
        self._codes: dict[str, tuple[str, ...]] = {}  # of a value: codes, scale, zero point
        self._coders: dict[str, tuple[NodeProto, NodeProto]] = {}
        self._shared: dict[Any, str] = {}
        self._context = context
        self._outputs: list[ValueInfoProto] = []
        n = static.n_rows
        self._inputs = [
            make_port(INPUT_IDS, TensorProto.INT32, (1, n)),
            make_port(POSITION_IDS, TensorProto.INT32, (1, n)),
        ]
        if static.n_logits < n:
            self._inputs.append(make_port(LOGIT_ROWS, TensorProto.INT32, (static.n_logits,)))
        hidden = (-mask_of(ranges), 0.0) if ranges else (0.0, 0.0)
        self._bias = self._input(ATTENTION_BIAS, (1, 1, n, context + n), hidden)

    def embed(self, weight: str) -> str:
        """Gathers rows of the table."""
        table = self._constant(self._weights.table(weight))
        return self._node("Gather", [table, INPUT_IDS], "embed", like=table, axis=0)

    def rms_norm(self, x: str, weight: str) -> str:
        """Adds an RMSNormalization over the last axis."""
        scale = self._constant(self._weights.vector(weight))
        return self._node(
            "RMSNormalization", [x, scale], weight.removesuffix(".weight"),
            axis=-1, epsilon=self._config.rms_norm_eps,
        )  # fmt: skip

    def head_norm(self, x: str, weight: str) -> str:
        """Adds an RMSNormalization over each head, between two reshapes."""
        stem = weight.removesuffix(".weight")
        heads = self._reshape(x, (1, self._static.n_rows, -1, self._config.head_size))
        return self._reshape(self.rms_norm(heads, weight), (1, self._static.n_rows, -1), stem)

    def linear(self, x: str, weight: str, bias: str | None = None) -> str:
        """Adds a MatMul, and an Add of the bias."""
        stem = "lm_head" if weight == "embed_tokens.weight" else weight.removesuffix(".weight")
        y = self._node("MatMul", [x, self._constant(self._weights.matrix(weight))], stem)
        if bias is None:
            return y
        return self._node("Add", [y, self._constant(self._weights.vector(bias))], f"{stem}.biased")

    def attention(self, q: str, k: str, v: str, layer: int) -> str:
        """Adds rotations and two products; makes the layer's keys and values ports."""
        c, n, stem = self._config, self._static.n_rows, f"layers.{layer}.self_attn"
        group = c.n_heads // c.n_kv_heads
        heads = self._rotate(self._heads(q, c.n_heads), c.n_heads, layer)
        scaled = self.scale(heads, c.product_scale)
        queries = self._reshape(scaled, (1, c.n_kv_heads, group * n, c.head_size))
        keys = self._rotate(self._heads(k, c.n_kv_heads), c.n_kv_heads, layer)
        keys = self._node("Transpose", [keys], f"{keys}.turned", like=keys, perm=[0, 1, 3, 2])
        values = self._heads(v, c.n_kv_heads)
        all_keys = self._join(past_port(layer, "key"), keys, 3)
        all_values = self._join(past_port(layer, "value"), values, 2)
        scores = self._node("MatMul", [queries, all_keys], stem + SCORES)
        if c.attention_softcap:
            scores = self.soft_cap(scores, c.attention_softcap)
        biased = self._node("Add", [scores, self._bias_of(group)], f"{stem}.biased", above=scores)
        shares = self._node("Softmax", [biased], f"{stem}.shares", of=(0.0, 1.0), axis=-1)
        attended = self._node("MatMul", [shares, all_values], f"{stem}.attended")
        attended = self._reshape(attended, (1, c.n_heads, n, c.head_size))
        rows = self._node("Transpose", [attended], f"{stem}.rows", like=attended, perm=[0, 2, 1, 3])
        return self._reshape(rows, (1, n, c.n_heads * c.head_size))

    def gate(self, gate: str, up: str) -> str:
        """Adds a Sigmoid, or a Gelu, and what is to be multiplied."""
        if self._config.activation == "gelu_tanh":
            gelu = self._node("Gelu", [gate], f"{gate}.gelu", approximate="tanh")
            return self._node("Mul", [gelu, up], f"{gate}.gated")
        sigmoid = self._node("Sigmoid", [gate], f"{gate}.sigmoid", of=(0.0, 1.0))
        silu = self._node("Mul", [gate, sigmoid], f"{gate}.silu")
        return self._node("Mul", [silu, up], f"{gate}.gated")

    def experts(self, x: str, router: str, prefix: str) -> str:
        """Is never called: the compiler refuses models with experts."""
        raise AssertionError(prefix)

    def add(self, a: str, b: str) -> str:
        """Adds an Add."""
        return self._node("Add", [a, b], b + STREAM)

    def scale(self, x: str, factor: float) -> str:
        """Adds a Mul by a constant."""
        return self._node("Mul", [x, self._constant(self._weights.number(factor))], f"{x}.scaled")

    def soft_cap(self, x: str, bound: float) -> str:
        """Adds a Tanh between two products with constants."""
        bent = self._node("Tanh", [self.scale(x, 1 / bound)], f"{x}.bent", of=(-1.0, 1.0))
        return self.scale(bent, bound)

    def select_rows(self, x: str) -> str:
        """Gathers the rows whose logits are asked for, where those are not all."""
        if self._static.n_logits == self._static.n_rows:
            return x
        return self._node("Gather", [x, LOGIT_ROWS], "selected_rows", like=x, axis=1)

    def hidden(self, x: str, layer: int) -> None:
        """Does nothing: these graphs return no hidden states."""

    def add_output(self, value: str, name: str, dims: Sequence[int]) -> None:
        """Makes ``value``, or its codes, the graph output ``name``."""
        if self._ranges is None:
            self._nodes.append(make_node("Identity", [value], [name], name))
            self._outputs.append(make_port(name, TensorProto.FLOAT, dims))
            return
        codes, *scale = self._codes[value]
        self._codes[value] = (name, *scale)
        quantize, dequantize = self._coders.pop(value)
        assert quantize.output[0] == codes == dequantize.input[0]
        quantize.output[0] = dequantize.input[0] = name
        self._outputs.append(make_port(name, TensorProto.UINT16, dims))

    def model(self) -> ModelProto:
        """Returns the finished model."""
        initializers = [*self._constants.values(), *self._weights.tensors(self._read)]
        graph = make_graph(
            self._nodes, self._static.name, self._inputs, self._outputs, initializers
        )
        opsets = [make_opset("", OPSET)]
        return make_model(graph, opsets=opsets, ir_version=IR_VERSION)

    def scale_of(self, value: str) -> tuple[float, float]:
        """Returns scale and zero point of the codes of ``value``."""
        _, *names = self._codes[value]
        scale, zero = (array_of(self._constants[name]) for name in names)
        return float(scale), float(zero)

    def _node(
        self,
        op_type: str,
        inputs: Sequence[str],
        name: str,
        like: str = "",
        above: str = "",
        of: Range | None = None,
        **attributes: Any,
    ) -> str:
        """Adds a node that makes ``name``, and what makes codes of it.

        like: a value of the same codes. above: one that hidden numbers were subtracted from. of:
        the range, where it is known.
        """
        made = f"{name}/float" if self._ranges else name
        self._nodes.append(make_node(op_type, inputs, [made], name=name, **attributes))
        if self._ranges is None:
            return name
        if like:
            _, scale, zero = self._codes[like]
        else:
            if above:
                low, high = self._ranges[above]
                of = low - HIDDEN_SHARE, high
            scale, zero = self._scale(name, of or self._ranges[name])
        return self._coded(made, name, scale, zero)

    def _coded(self, made: str, name: str, scale: str, zero: str) -> str:
        codes = f"{name}/codes"
        self._coders[name] = (
            make_node("QuantizeLinear", [made, scale, zero], [codes], codes),
            make_node("DequantizeLinear", [codes, scale, zero], [name], f"{name}/value"),
        )
        self._nodes += self._coders[name]
        self._codes[name] = codes, scale, zero
        return name

    def _scale(self, name: str, of: Range) -> tuple[str, str]:
        """Returns names of scale and zero point for the range ``of``."""
        scale, zero = wide_scale(min(of[0], 0.0), max(of[1], 0.0))
        names = f"{name}/scale", f"{name}/zero"
        self._constants[names[0]] = tensor_of(np.array(scale), names[0])
        self._constants[names[1]] = tensor_of(np.array(zero), names[1])
        return names

    def _constant(self, stored: Codes) -> str:
        """Returns the value of stored codes."""
        codes, scale, zero = stored.inputs
        name = codes.removesuffix(".codes") + "/value"
        if name not in self._codes:
            self._read |= {*stored.inputs}
            self._codes[name] = codes, scale, zero
            self._nodes.append(
                make_node("DequantizeLinear", stored.inputs, [name], name, **stored.attributes)
            )
        return name

    def _input(self, name: str, dims: Sequence[int], of: Range | None, like: str = "") -> str:
        """Returns the value of an input of codes, or of floats."""
        if self._ranges is None:
            self._inputs.append(make_port(name, TensorProto.FLOAT, dims))
            return name
        self._inputs.append(make_port(name, TensorProto.UINT16, dims))
        scale, zero = self._codes[like][1:] if like else self._scale(name, of or (0.0, 0.0))
        value = f"{name}/value"
        self._nodes.append(make_node("DequantizeLinear", [name, scale, zero], [value], value))
        self._codes[value] = name, scale, zero
        return value

    def _join(self, past: str, rows: str, axis: int) -> str:
        """Returns keys or values of all tokens; makes those of the pass an output."""
        sizes = [1, self._config.n_kv_heads, self._config.head_size, self._config.head_size]
        sizes[axis] = self._context
        before = self._input(past, sizes, None, rows)
        joined = self._node("Concat", [before, rows], f"{past}.all", like=rows, axis=axis)
        sizes[axis] = self._static.n_rows
        self.add_output(rows, present_port(past), sizes)
        return joined

    def _heads(self, x: str, n_heads: int) -> str:
        """Returns ``x`` as [1, n_heads, T, head_size]."""
        heads = self._reshape(x, (1, self._static.n_rows, n_heads, self._config.head_size))
        return self._node("Transpose", [heads], f"{x}.by_head", like=heads, perm=[0, 2, 1, 3])

    def _reshape(self, x: str, sizes: Sequence[int], name: str = "") -> str:
        shape = "shape." + "x".join(map(str, sizes))
        self._constants[shape] = tensor_of(np.array(sizes, np.int64), shape)
        return self._node("Reshape", [x, shape], f"{name or x}.as{len(sizes)}", like=x)

    def _rotate(self, x: str, n_heads: int, layer: int) -> str:
        """Rotates channel i with channel i + head_size / 2 of [1, heads, T, head_size]."""
        rope = rope_of(self._config.layer(layer))
        if not rope.theta:
            return x
        cos, sin = (self._angles(rope, part, n_heads) for part in range(2))
        low, high = (self._half(x, part) for part in range(2))
        swapped = self._node("Concat", [high, low], f"{x}.swapped", like=x, axis=3)
        straight = self._node("Mul", [x, cos], f"{x}.cos")
        turned = self._node("Mul", [swapped, sin], f"{x}.sin")
        return self._node("Add", [straight, turned], f"{x}.rotated")

    def _half(self, x: str, part: int) -> str:
        half = self._config.head_size // 2
        bounds = []
        for key, value in (("start", part * half), ("stop", part * half + half), ("axis", 3)):
            bounds.append(name := f"{key}.{value}")
            self._constants[name] = tensor_of(np.array([value], np.int64), name)
        return self._node("Slice", [x, *bounds], f"{x}.half{part}", like=x)

    def _angles(self, rope: Rope, part: int, n_heads: int) -> str:
        """Returns cosines, or signed sines, at the pass's positions [1, n_heads, T, head_size].

        Each head has its own copy: of products of nine heads with one row of angles, Qualcomm's
        library for x86 gets the rows from the ninth on wrong.
        """
        key = ("rope", rope, part, n_heads)
        if key not in self._shared:
            table = self._constant(self._weights.rope(rope)[part])
            name = f"{table}.{n_heads}"
            rows = self._node("Gather", [table, POSITION_IDS], f"{name}.rows", like=table, axis=0)
            sizes = (1, 1, self._static.n_rows, self._config.head_size)
            angles = [self._reshape(rows, sizes)] * n_heads
            self._shared[key] = self._node("Concat", angles, name, like=table, axis=1)
        return self._shared[key]

    def _bias_of(self, group: int) -> str:
        """Returns the attention bias of all heads that share keys [1, 1, group * T, ...]."""
        if group == 1:
            return self._bias
        if "bias" not in self._shared:
            parts = [self._bias] * group
            self._shared["bias"] = self._node("Concat", parts, "bias.all", like=self._bias, axis=2)
        return self._shared["bias"]
