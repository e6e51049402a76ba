"""The portable graph: a recipe written down in standard ONNX operators (opset 23).

Its ports are those of `edgedec.models.graph`, with an attention bias, so that chains and trees are
the same graph, and KV rows. Keys are rotated. Matrices are stored [K, N], the transpose of the
checkpoint's, so a tied head is one tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from edgedec.export.to_onnx.graph import external_tensor
from edgedec.export.to_onnx.make import (
    make_graph,
    make_model,
    make_node,
    make_opset,
    make_port,
    make_tensor,
)
from edgedec.export.to_onnx.messages import (
    FunctionProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
)
from edgedec.export.to_onnx.recurrence import DOMAIN, VECTORS, short_conv, state_space
from edgedec.models.blocks import GATE_SLOPE, MIN_SQUARE, SUPPRESSED, Ops, mixer_prefix
from edgedec.models.config import ModelConfig
from edgedec.models.distance_bias import DISTANCE_BIAS, distance_buckets
from edgedec.models.errors import ConfigError
from edgedec.models.families import find_family, weight_shapes
from edgedec.models.graph import (
    ATTENTION_BIAS,
    CONV_TAPS,
    INPUT_IDS,
    KV_PARTS,
    LOGIT_ROWS,
    LOGITS,
    POSITION_IDS,
    SOURCE_BIAS,
    STATE_LEVELS,
    STATE_ORDER,
    STATE_TRUNK,
    hidden_port,
    new_rows_port,
    new_state_port,
    past_port,
    present_port,
    rows_port,
    state_port,
)
from edgedec.models.position_tables import QUERY_GROWTH
from edgedec.models.rope import UNROTATED, Rope, rope_names, rope_of

OPSET = 23
IR_VERSION = 11
_BIAS_SHAPE = (1, 1, "T", "P+T")
_GELUS = {"gelu": "none", "gelu_tanh": "tanh"}
"""Activations -> what `Gelu` calls them."""
MASKED = -3.0e38
"""Bias of what a row does not see: no number that is added to it makes a NaN."""


def emit_portable(config: ModelConfig, hidden_layers: Sequence[int] = ()) -> ModelProto:
    """Returns the portable graph; its weights are references to bytes not yet written.

    hidden_layers: layers (0: embeddings) whose residual stream becomes an output.

    Raises:
        ConfigError: a hidden layer the model does not have.
    """
    for layer in hidden_layers:
        if not 0 <= layer <= config.n_layers:
            raise ConfigError(f"hidden layer {layer}: expected 0 to {config.n_layers}")
    emitter = PortableEmitter(config, frozenset(hidden_layers))
    logits = find_family(config.family).recipe(emitter, config)
    emitter.name_output(logits, LOGITS, (1, "R", config.n_logits))
    return emitter.model()


class PortableEmitter(Ops[str]):
    """`Ops` over names of graph values, each [1, T, features].

    ``element`` is the `TensorProto` data type of all that is computed, keys and values too.
    The bias, logits and hidden states that leave the graph are float32 whatever it is.
    """

    element: int = TensorProto.FLOAT

    def __init__(self, config: ModelConfig, hidden_layers: frozenset[int]) -> None:
        self._config = config
        self._hidden_layers = hidden_layers
        self._shapes = weight_shapes(config)
        self._nodes: list[NodeProto] = []
        self._n_named: Counter[str] = Counter()
        self._initializers: dict[str, TensorProto] = {}
        self._shared: set[str] = set()  # values of several layers that are made by now
        self._functions: dict[str, FunctionProto] = {}
        self._outputs: list[ValueInfoProto] = []
        self._inputs = [
            _value(INPUT_IDS, TensorProto.INT64, (1, "T")),
            _value(POSITION_IDS, TensorProto.INT64, (1, "T")),
            _value(ATTENTION_BIAS, TensorProto.FLOAT, _BIAS_SHAPE),
            _value(LOGIT_ROWS, TensorProto.INT64, ("R",)),
        ]
        if config.encoder is not None:
            self._inputs.append(_value(SOURCE_BIAS, TensorProto.FLOAT, _BIAS_SHAPE))

    def embed(self, weight: str) -> str:
        """Gathers columns of the matrix, which lies transposed, and turns them into rows."""
        columns = self._node("Gather", [self._weight(weight), INPUT_IDS], "embed_columns", axis=1)
        return self._node("Transpose", [columns], "embed", perm=[1, 2, 0])

    def embed_layers(self, weight: str) -> str:
        """Gathers the rows of each token, which lie below each other."""
        (n_rows, size), n, stem = self._shapes[weight], self._config.n_layers, "embed_layers"
        ids = INPUT_IDS
        if n_rows < n * self._config.vocab_size:
            for name, value in (("first", 0), ("stop", n_rows // n)):
                self._constant(f"{stem}.{name}", [value])
            known = self._node("Less", [ids, f"{stem}.stop"], f"{stem}.known")
            ids = self._node("Where", [known, ids, f"{stem}.first"], f"{stem}.ids")
        self._constant(f"{stem}.each", [n])
        self._constant(f"{stem}.layers", list(range(n)))
        self._constant(f"{stem}.last", [-1])
        self._constant(f"{stem}.row", [0, 0, n * size])
        starts = self._node("Mul", [ids, f"{stem}.each"], f"{stem}.starts")
        column = self._node("Unsqueeze", [starts, f"{stem}.last"], f"{stem}.column")
        rows = self._node("Add", [column, f"{stem}.layers"], f"{stem}.rows")
        if weight not in self._initializers:
            self._initializers[weight] = external_tensor(weight, self.element, (n_rows, size))
        gathered = self._node("Gather", [weight, rows], f"{stem}.gathered", axis=0)
        return self._node("Reshape", [gathered, f"{stem}.row"], stem)

    def rms_norm(self, x: str, weight: str) -> str:
        """Adds an RMSNormalization over the last axis."""
        return self._normed(x, self._weight(weight), weight.removesuffix(".weight"))

    def embed_positions(self, weight: str, first: int) -> str:
        """Gathers columns as `embed` does, by positions."""
        stem, places = weight.removesuffix(".weight"), POSITION_IDS
        if first:
            self._constant(f"{stem}.first", [first])
            places = self._node("Add", [POSITION_IDS, f"{stem}.first"], f"{stem}.places")
        columns = self._node("Gather", [self._weight(weight), places], f"{stem}.columns", axis=1)
        return self._node("Transpose", [columns], stem, perm=[1, 2, 0])

    def layer_norm(self, x: str, weight: str, bias: str | None = None) -> str:
        """Adds a LayerNormalization over the last axis."""
        inputs = [x, self._weight(weight), *([] if bias is None else [self._weight(bias)])]
        stem, epsilon = weight.removesuffix(".weight"), self._config.rms_norm_eps
        return self._node("LayerNormalization", inputs, stem, axis=-1, epsilon=epsilon)

    def shift_channels(self, x: str, weight: str) -> str:
        """Adds an Add of a vector."""
        return self._node("Add", [x, self._weight(weight)], f"{weight}.shifted")

    def activate(self, x: str) -> str:
        """Adds a Relu or a Gelu."""
        stem, activation = x.removesuffix(".matmul"), self._config.activation
        if activation == "relu":
            return self.relu(x)
        return self._node("Gelu", [x], f"{stem}.gelu", approximate=_GELUS[activation])

    def head_norm(self, x: str, weight: str) -> str:
        """Adds an RMSNormalization over each head, between two reshapes."""
        stem, size = weight.removesuffix(".weight"), self._shapes[weight][0]
        return self._norm_of_each(x, size, self._weight(weight), stem)

    def unit_norm(self, x: str, size: int) -> str:
        """Adds an RMSNormalization as `head_norm` does, whose weights are 1."""
        ones = f"ones.{size}"
        self._initializers[ones] = make_tensor(ones, self.element, [size], np.ones(size))
        return self._norm_of_each(x, size, ones, f"{x.removesuffix('.matmul')}.normed")

    def _norm_of_each(self, x: str, size: int, weight: str, stem: str) -> str:
        heads, whole = f"{stem}.heads", f"{stem}.whole"
        self._constant(heads, [0, 0, -1, size])
        self._constant(whole, [0, 0, -1])
        normed = self._normed(self._node("Reshape", [x, heads], f"{stem}.split"), weight, stem)
        return self._node("Reshape", [normed, whole], f"{stem}.joined")

    def _normed(self, x: str, weight: str, name: str) -> str:
        epsilon = self._config.rms_norm_eps
        return self._node("RMSNormalization", [x, weight], name, axis=-1, epsilon=epsilon)

    def linear(self, x: str, weight: str, bias: str | None = None) -> str:
        """Adds a MatMul, and an Add of the bias."""
        stem = weight.removesuffix(".weight")
        if weight == "embed_tokens.weight":
            stem = "lm_head"
        y = self._node("MatMul", [x, self._weight(weight)], f"{stem}.matmul")
        if bias is None:
            return y
        return self._node("Add", [y, self._weight(bias)], f"{stem}.bias_add")

    def attention(self, q: str, k: str, v: str, layer: int) -> str:
        """Adds rotations and an Attention; makes the layer's keys and values ports."""
        past, present = self._kv_ports(layer)
        bias = self._bias(self._config.layer(layer).window)
        return self._attend([q, k, v], layer, [bias, *past], present)

    def sink_attention(self, q: str, k: str, v: str, layer: int, sinks: str) -> str:
        """Adds an Attention over a key and a value of zeros before the others.

        The bias of that position is the head's sink.
        """
        past, present = self._kv_ports(layer)
        longer = [self._after_zeros(name) for name in past]
        bias = self._bias(self._config.layer(layer).window)
        made = [f"{name}.longer" for name in present]
        y = self._attend([q, k, v], layer, [self._sink_bias(sinks, bias), *longer], made)
        for name, whole in zip(present, made, strict=True):
            self._constant("sink.end", [2**31])
            self._constant("sink.axis", [2])
            self._constant("sink.one", [1])
            self._node("Slice", [whole, "sink.one", "sink.end", "sink.axis"], name)
        return y

    def shared_attention(self, q: str, layer: int) -> str:
        """Adds an Attention over what another layer's gives back, whose heads lie apart."""
        config, stem = self._config, f"layers.{layer}.self_attn"
        of_layer = config.layer(layer)
        assert of_layer.kv_layer is not None
        present = [present_port(past_port(of_layer.kv_layer, part)) for part in KV_PARTS]
        rotated = self._rotate(q, config.n_heads, f"{stem}.q_rotated", rope_of(of_layer))
        return self._attend_apart(rotated, [*present, self._bias(of_layer.window)], stem)

    def source_attention(self, q: str, layer: int) -> str:
        """Adds an Attention over the first of what the layer gives back; it rotates nothing."""
        present = [present_port(past_port(layer, part)) for part in KV_PARTS]
        stem = f"layers.{layer}.source_attn"
        still = self._rotate(q, self._config.n_heads, f"{stem}.q_rotated", UNROTATED)
        return self._attend_apart(still, [*present, SOURCE_BIAS], stem)

    def _attend_apart(self, q: str, kv_and_bias: list[str], stem: str) -> str:
        """Adds an Attention whose keys and values have their heads apart."""
        config = self._config
        self._constant("heads.apart", [0, 0, config.n_heads, -1])
        self._constant("heads.joined", [0, 0, -1])
        rows = self._node("Reshape", [q, "heads.apart"], f"{stem}.q_rows")
        heads = self._node("Transpose", [rows], f"{stem}.q_heads", perm=[0, 2, 1, 3])
        attended = self._node(
            "Attention",
            [heads, *kv_and_bias],
            f"{stem}.attend",
            scale=config.attention_scale or None,
            softcap=config.attention_softcap or None,
        )
        back = self._node("Transpose", [attended], f"{stem}.by_row", perm=[0, 2, 1, 3])
        return self._node("Reshape", [back, "heads.joined"], f"{stem}.attended")

    def _after_zeros(self, past: str) -> str:
        c, zeros = self._config, "sink.zeros"
        dims = 1, c.n_kv_heads, 1, c.head_size
        self._initializers[zeros] = make_tensor(
            zeros, self.element, dims, np.zeros(dims, np.float32)
        )
        return self._node("Concat", [zeros, past], f"{past}.longer", axis=2)

    def _sink_bias(self, sinks: str, bias: str) -> str:
        """Returns ``bias`` of each head [1, n_heads, T, 1 + P + T], the sink's coming first."""
        n_heads, shape, wide = self._config.n_heads, "sink.shape", f"{bias}.wide"
        if shape not in self._shared:
            self._shared.add(shape)
            self._constant("sink.heads", [1, -1, 1, 1])
            self._constant("sink.outer", [1, n_heads])
            self._constant("sink.one", [1])
            rows = self._node("Shape", [POSITION_IDS], "sink.rows", start=1, end=2)
            self._node("Concat", ["sink.outer", rows, "sink.one"], shape, axis=0)
        if wide not in self._shared:
            self._shared.add(wide)
            self._constant("sink.all", [1, n_heads, 1, 1])
            self._node("Expand", [bias, "sink.all"], wide)
        column = self._node("Reshape", [self._weight(sinks), "sink.heads"], f"{sinks}.column")
        scores = self._node("Expand", [column, shape], f"{sinks}.scores")
        return self._node("Concat", [scores, wide], f"{sinks}.bias", axis=3)

    def _kv_ports(self, layer: int) -> tuple[list[str], list[str]]:
        """Makes the layer's keys and values ports; returns what goes in and what comes out."""
        past = [past_port(layer, part) for part in KV_PARTS]
        present = [present_port(name) for name in past]
        size = self._config.head_size_of(layer)
        self._inputs += [self._kv_value(name, "P", size) for name in past]
        self._outputs += [self._kv_value(name, "P+T", size) for name in present]
        return past, present

    def _attend(self, qkv: list[str], layer: int, others: list[str], present: list[str]) -> str:
        config, stem = self._config, f"layers.{layer}.self_attn"
        rope, (q, k, v) = rope_of(config.layer(layer)), qkv
        attended = f"{stem}.attend"
        attend = make_node(
            "Attention",
            [
                self._rotate(q, config.n_heads, f"{stem}.q_rotated", rope),
                self._rotate(k, config.n_kv_heads, f"{stem}.k_rotated", rope),
                v,
                *others,
            ],
            [attended, *present],
            name=attended,
            q_num_heads=config.n_heads,
            kv_num_heads=config.n_kv_heads,
            scale=config.attention_scale or None,
            softcap=config.attention_softcap or None,
        )
        self._nodes.append(attend)
        return attended

    def recurrence(self, parts: Sequence[str], layer: int) -> str:
        """Adds a call of the recurrence, a function of standard operators; its rows are ports."""
        recurrence, y = self._config.recurrence, f"{mixer_prefix(layer)}.recurrence"
        names = [f"{mixer_prefix(layer)}.{name}" for name in VECTORS]
        vectors = [name for name in names if name in self._shapes]
        past, present = [rows_port(layer), CONV_TAPS], [new_rows_port(layer)]
        self._inputs.append(_value(past[0], self.element, (1, "Q", recurrence.row_size)))
        self._outputs.append(_value(present[0], self.element, (1, "Q+T", recurrence.row_size)))
        self._shared_port(CONV_TAPS, ("S" if recurrence.has_states else "T", recurrence.conv_size))
        if recurrence.has_states:
            past += self._state_ports(layer)
            present.append(new_state_port(layer))
            ends = [name.removeprefix(f"{mixer_prefix(layer)}.") for name in vectors]
            function = state_space(OPSET, recurrence, ends)
        else:
            function = short_conv(OPSET, recurrence.has_conv_bias)
        self._functions[function.name] = function
        inputs = [*parts, *past, *map(self._weight, vectors)]
        self._nodes.append(make_node(function.name, inputs, [y, *present], y, domain=DOMAIN))
        return y

    def _state_ports(self, layer: int) -> list[str]:
        """Makes ports of the layer's state, and of the walk that is the same in all layers."""
        shape = self._config.recurrence.state_sizes
        self._inputs.append(_value(state_port(layer), self.element, shape))
        self._outputs.append(_value(new_state_port(layer), self.element, shape))
        self._shared_port(STATE_TRUNK, ("B",))
        self._shared_port(STATE_LEVELS, (2, "D", "V"))
        self._shared_port(STATE_ORDER, ("T",))
        return [state_port(layer), STATE_TRUNK, STATE_LEVELS, STATE_ORDER]

    def _shared_port(self, name: str, dims: Sequence[int | str]) -> None:
        """Makes an input of indices, unless another layer has."""
        if name not in self._shared:
            self._shared.add(name)
            self._inputs.append(_value(name, TensorProto.INT64, dims))

    def rotate(self, x: str, n_heads: int) -> str:
        """Adds a rotation of its own."""
        return self._rotate(x, n_heads, f"{x}.early", Rope(self._config.rope_theta, True))

    def grow_queries(self, q: str) -> str:
        """Adds a Mul by a table's rows, where texts are long enough for any to differ."""
        if self._config.max_positions <= self._config.query_growth_start:
            return q
        rows = f"{QUERY_GROWTH}.rows"
        if rows not in self._shared:
            self._shared.add(rows)
            self._table(QUERY_GROWTH, 1)
            self._node("Gather", [QUERY_GROWTH, POSITION_IDS], rows, axis=0)
        return self._node("Mul", [q, rows], f"{q}.grown")

    def sigmoid_gate(self, x: str, gate: str) -> str:
        """Adds a Sigmoid and a Mul."""
        sigmoid = self._node("Sigmoid", [gate], f"{gate.removesuffix('.matmul')}.sigmoid")
        return self._node("Mul", [x, sigmoid], f"{x}.shared")

    def gate(self, gate: str, up: str) -> str:
        """Adds a Sigmoid, or a Gelu, and what is to be multiplied."""
        stem = gate.removesuffix(".matmul")
        if self._config.activation in _GELUS:
            gelu = self.activate(gate)
            return self._node("Mul", [gelu, up], f"{stem}.gated")
        sigmoid = self._node("Sigmoid", [gate], f"{stem}.sigmoid")
        silu = self._node("Mul", [gate, sigmoid], f"{stem}.silu")
        return self._node("Mul", [silu, up], f"{stem}.gated")

    def squared_relu(self, x: str) -> str:
        """Adds a Relu, and a Mul by itself."""
        stem = x.removesuffix(".matmul")
        above = self._node("Relu", [x], f"{stem}.relu")
        return self._node("Mul", [above, above], f"{stem}.squared")

    def relu(self, x: str) -> str:
        """Adds a Relu."""
        return self._node("Relu", [x], f"{x.removesuffix('.matmul')}.relu")

    def largest(self, x: str, sparsity: float) -> str:
        """Adds mean and standard deviation of a row, and a Relu of what exceeds their sum."""
        stem = x.removesuffix(".matmul")
        mean = self._mean(x, f"{stem}.mean")
        spread = self._node("Sub", [x, mean], f"{stem}.spread")
        variance = self._mean_square(spread, f"{stem}.variance")
        deviation = self._node("Sqrt", [variance], f"{stem}.deviation")
        factor = self._float(f"{stem}.deviations", NormalDist().inv_cdf(sparsity))
        limit = self._node("Mul", [deviation, factor], f"{stem}.limit")
        return self._node("Relu", [self._node("Sub", [spread, limit], f"{stem}.above")], stem)

    def _mean(self, x: str, name: str) -> str:
        self._constant("axis.last", [-1])
        return self._node("ReduceMean", [x, "axis.last"], name, keepdims=1)

    def _mean_square(self, x: str, name: str) -> str:
        return self._mean(self._node("Mul", [x, x], f"{name}.squares"), name)

    def parts(self, x: str, n: int) -> Sequence[str]:
        """Adds a Split."""
        names = [f"{x}.{i}" for i in range(n)]
        self._nodes.append(
            make_node("Split", [x], names, name=f"{x}.parts", axis=-1, num_outputs=n)
        )
        return names

    def match_size(self, x: str, like: str) -> str:
        """Adds the quotient of two root mean squares, and a Mul by it."""
        stem = x.removesuffix(".matmul")
        least = self._float("size.least", MIN_SQUARE)
        square = self._node("Max", [self._mean_square(x, f"{stem}.square"), least], f"{stem}.least")
        target = self._mean_square(like, f"{stem}.wanted")
        quotient = self._node("Div", [target, square], f"{stem}.quotient")
        factor = self._node("Sqrt", [quotient], f"{stem}.factor")
        return self._node("Mul", [x, factor], f"{stem}.matched")

    def tanh(self, x: str) -> str:
        """Adds a Tanh."""
        return self._node("Tanh", [x], f"{x}.tanh")

    def mix(self, bases: Sequence[str], xs: Sequence[str], weights: str) -> Sequence[str]:
        """Adds a MatMul of each row's own matrix of weights and its ``xs``, stacked."""
        stem = weights.removesuffix(".matmul")
        self._constant("mix.rows", [0, 0, -1])
        shape = f"mix.{len(bases)}x{len(xs)}"
        self._constant(shape, [0, 0, len(bases), len(xs)])
        matrices = self._node("Reshape", [weights, shape], f"{stem}.matrices")
        stacked = self._stacked(xs, f"{stem}.stack")
        sums = self._node("MatMul", [matrices, stacked], f"{stem}.sums")
        added = self._node("Add", [self._stacked(bases, f"{stem}.bases"), sums], f"{stem}.added")
        return self.parts(self._node("Reshape", [added, "mix.rows"], f"{stem}.mixed"), len(bases))

    def _stacked(self, xs: Sequence[str], name: str) -> str:
        """Returns ``xs`` as [1, T, n, features]."""
        self._constant("stack.axis", [2])
        apart = [
            self._node("Unsqueeze", [x, "stack.axis"], f"{name}.{i}") for i, x in enumerate(xs)
        ]
        return self._node("Concat", apart, name, axis=2) if len(apart) > 1 else apart[0]

    def scale_channels(self, x: str, weight: str) -> str:
        """Adds a Mul by a vector."""
        return self._node("Mul", [x, self._weight(weight)], f"{weight}.scaled")

    def experts(self, x: str, router: str, prefix: str) -> str:
        """Adds the MLPs of all experts [E, T, ...], and the sum of what a TopK leaves of them.

        Their matrices are stored [E, K, N].
        """
        gate = self.linear(x, f"{prefix}.gate_proj.weight")
        up = self.linear(x, f"{prefix}.up_proj.weight")
        down = self.linear(self.gate(gate, up), f"{prefix}.down_proj.weight")
        return self._mixed(down, router, prefix)

    def clamped_experts(self, x: str, router: str, prefix: str) -> str:
        """Adds them as `experts` does, with an Add of each bias [E, 1, N]."""
        limit = self._config.expert_limit
        least, most, unit, slope = (
            self._float(f"experts.{name}", value)
            for name, value in (
                ("least", -limit), ("most", limit), ("one", 1.0), ("slope", GATE_SLOPE),
            )
        )  # fmt: skip
        gate = self._biased(x, f"{prefix}.gate_proj")
        up = self._biased(x, f"{prefix}.up_proj")
        gate = self._node("Min", [gate, most], f"{prefix}.gate")
        up = self._node("Clip", [up, least, most], f"{prefix}.up")
        steep = self._node("Mul", [gate, slope], f"{prefix}.steep")
        sigmoid = self._node("Sigmoid", [steep], f"{prefix}.sigmoid")
        open_gate = self._node("Mul", [gate, sigmoid], f"{prefix}.open")
        more = self._node("Add", [up, unit], f"{prefix}.more")
        gated = self._node("Mul", [open_gate, more], f"{prefix}.gated")
        return self._mixed(self._biased(gated, f"{prefix}.down_proj"), router, prefix)

    def _biased(self, x: str, stem: str) -> str:
        self._constant("experts.rows", [self._config.n_experts, 1, -1])
        bias = self._weight(f"{stem}.bias")
        rows = self._node("Reshape", [bias, "experts.rows"], f"{stem}.bias_rows")
        return self._node("Add", [self.linear(x, f"{stem}.weight"), rows], f"{stem}.biased")

    def _mixed(self, down: str, router: str, prefix: str) -> str:
        weights = self._route(router, prefix)
        weighted = self._node("Mul", [down, weights], f"{prefix}.weighted")
        self._constant("experts.first", [0])
        return self._node("ReduceSum", [weighted, "experts.first"], f"{prefix}.sum")

    def _route(self, router: str, stem: str) -> str:
        """Returns what every expert counts for [E, T, 1], nothing for most."""
        c = self._config
        self._constant("experts.used", [c.n_experts_used])
        self._constant("experts.last", [-1])
        scores = self._node("Softmax", [router], f"{stem}.scores", axis=-1)
        top, places = f"{stem}.top", f"{stem}.places"
        self._nodes.append(make_node("TopK", [scores, "experts.used"], [top, places], top))
        if c.is_routing_normed:
            total = self._node("ReduceSum", [top, "experts.last"], f"{stem}.total")
            top = self._node("Div", [top, total], f"{stem}.normed")
        shape = self._node("Shape", [scores], f"{stem}.shape")
        zero = make_tensor("value", self.element, [1], [0.0])
        nothing = self._node("ConstantOfShape", [shape], f"{stem}.nothing", value=zero)
        spread = self._node("ScatterElements", [nothing, places, top], f"{stem}.spread", axis=-1)
        return self._node("Transpose", [spread], f"{stem}.weights", perm=[2, 1, 0])

    def add(self, a: str, b: str) -> str:
        """Adds an Add, the residual stream first."""
        return self._node("Add", [a, b], f"{b.removesuffix('.matmul')}.residual_add")

    def scale(self, x: str, factor: float) -> str:
        """Adds a Mul by a constant."""
        return self._node("Mul", [x, self._float(f"{x}.scale", factor)], f"{x}.scaled")

    def soft_cap(self, x: str, bound: float) -> str:
        """Adds a Tanh between a Div and a Mul by a constant."""
        cap = self._float(f"{x}.cap", bound)
        bent = self._node("Tanh", [self._node("Div", [x, cap], f"{x}.divided")], f"{x}.bent")
        return self._node("Mul", [bent, cap], f"{x}.capped")

    def suppress(self, logits: str) -> str:
        """Adds an Add of a row that is 0 for all other tokens."""
        row = np.zeros(self._config.n_logits, np.float32)
        row[list(self._config.suppressed_tokens)] = SUPPRESSED
        name = "suppressed"
        self._initializers[name] = make_tensor(name, self.element, row.shape, row)
        return self._node("Add", [logits, name], "suppressed.logits")

    def select_rows(self, x: str) -> str:
        """Adds a Gather of the rows whose logits are asked for."""
        return self._node("Gather", [x, LOGIT_ROWS], "selected_rows", axis=1)

    def hidden(self, x: str, layer: int) -> None:
        """Makes ``x`` an output, if ``layer`` is among the chosen."""
        if layer in self._hidden_layers:
            y = self._node("Identity", [x], hidden_port(layer))
            self.name_output(y, y, (1, "T", self._config.hidden_size))

    def name_output(self, value: str, name: str, dims: Sequence[int | str]) -> None:
        """Makes ``value``, which the latest node made, the graph output ``name``."""
        node = self._nodes[-1]
        assert node.output[0] == value
        node.output[0] = name
        if self.element != TensorProto.FLOAT:
            node.name = node.output[0] = f"{name}.short"
            cast = make_node("Cast", [node.name], [name], name=name, to=TensorProto.FLOAT)
            self._nodes.append(cast)
        self._outputs.append(_value(name, TensorProto.FLOAT, dims))

    def model(self) -> ModelProto:
        """Returns the finished model."""
        graph = make_graph(
            self._nodes,
            self._config.family,
            self._inputs,
            self._outputs,
            list(self._initializers.values()),
        )
        opsets = [make_opset("", OPSET)]
        if self._config.recurrent_layers:
            opsets.append(make_opset(DOMAIN, 1))
        return make_model(
            graph,
            opsets=opsets,
            functions=self._functions.values(),
            ir_version=IR_VERSION,
        )

    def _node(self, op_type: str, inputs: list[str], name: str, **attributes: Any) -> str:
        """Returns the value of a new node; a number follows a name that is taken."""
        self._n_named[name] += 1
        if (n := self._n_named[name]) > 1:
            name = f"{name}.{n}"
        self._nodes.append(make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def _constant(self, name: str, values: list[int]) -> None:
        tensor = make_tensor(name, TensorProto.INT64, [len(values)], values)
        self._initializers[name] = tensor

    def _float(self, name: str, value: float, element: int | None = None) -> str:
        tensor = make_tensor(name, element or self.element, [], [value])
        self._initializers[name] = tensor
        return name

    def _bias(self, window: int) -> str:
        """Returns the attention bias that also hides what lies before a window, 0 for none.

        What a row sees lies in order, in the KV cache as in a tree: it is the last ``window``.
        """
        if self._config.n_distance_buckets:
            return self._distance_bias()
        if not window:
            return ATTENTION_BIAS
        if self._config.is_embedder:
            return self._bias_around(window)
        stem = f"window.{window}"
        if stem not in self._shared:
            self._shared.add(stem)
            limit = self._float(stem, window, TensorProto.FLOAT)
            hidden = self._float(f"{stem}.hidden", MASKED, TensorProto.FLOAT)
            place = self._places(stem)
            outside = self._node("Greater", [place, limit], f"{stem}.outside")
            self._node("Where", [outside, hidden, ATTENTION_BIAS], f"{stem}.bias")
        return f"{stem}.bias"

    def _bias_around(self, window: int) -> str:
        """Returns the attention bias that hides what is ``window`` tokens away or more."""
        stem = f"window.{window}"
        if stem not in self._shared:
            self._shared.add(stem)
            limit = make_tensor(f"{stem}.limit", TensorProto.INT64, [], [window])
            self._initializers[limit.name] = limit
            hidden = self._float(f"{stem}.hidden", MASKED, TensorProto.FLOAT)
            self._constant("axis.rows", [2])
            row = self._node("Unsqueeze", [POSITION_IDS, "axis.rows"], f"{stem}.rows")
            column = self._node("Unsqueeze", [POSITION_IDS, "axis.one"], f"{stem}.columns")
            self._constant("axis.one", [1])
            away = self._node("Abs", [self._node("Sub", [row, column], f"{stem}.offsets")], stem)
            outside = self._node("GreaterOrEqual", [away, limit.name], f"{stem}.outside")
            of_all = self._node("Unsqueeze", [outside, "axis.one"], f"{stem}.of_all")
            self._node("Where", [of_all, hidden, ATTENTION_BIAS], f"{stem}.bias")
        return f"{stem}.bias"

    def _places(self, stem: str) -> str:
        """Returns of what each row sees the place of each, counted from the end, as floats."""
        lowest = self._float(f"{stem}.lowest", -1.0, TensorProto.FLOAT)
        self._constant("axis.keys", [3])
        sees = self._node("Greater", [ATTENTION_BIAS, lowest], f"{stem}.sees")
        ones = self._node("Cast", [sees], f"{stem}.ones", to=TensorProto.FLOAT)
        return self._node("CumSum", [ones, "axis.keys"], f"{stem}.place", reverse=1)

    def _distance_bias(self) -> str:
        """Returns the attention bias plus that of each head [1, n_heads, T, P + T]."""
        stem, whole = "distance", "distance.bias"
        if stem not in self._shared:
            self._shared.add(stem)
            unit = self._float("distance.one", 1.0, TensorProto.FLOAT)
            behind = self._node("Sub", [self._places(stem), unit], "distance.behind")
            of_heads = self._bias_of(
                self._node("Cast", [behind], "distance.at", to=TensorProto.INT64)
            )
            self._constant("axis.first", [0])
            apart = self._node("Squeeze", [of_heads, "axis.first"], "distance.apart")
            self._node("Add", [apart, ATTENTION_BIAS], whole)
        return whole

    def _bias_of(self, distances: str) -> str:
        """Returns the biases of ``distances`` [1, 1, T, K] as [1, 1, n_heads, T, K]."""
        c, table = self._config, "distance.table"
        buckets = distance_buckets(c)
        self._constant("distance.buckets", buckets.tolist())
        self._constant("distance.shape", [-1, c.n_heads])
        for name, value in (("distance.nearest", 0), ("distance.farthest", len(buckets) - 1)):
            self._initializers[name] = make_tensor(name, TensorProto.INT64, [], [value])
        by_bucket = self._node(
            "Reshape", [self._weight(DISTANCE_BIAS), "distance.shape"], "distance.by_bucket"
        )
        self._node("Gather", [by_bucket, "distance.buckets"], table, axis=0)
        bounds = ["distance.nearest", "distance.farthest"]
        at = self._node("Clip", [distances, *bounds], "distance.bounded")
        each = self._node("Gather", [table, at], "distance.each", axis=0)
        return self._node("Transpose", [each], "distance.of_heads", perm=[0, 1, 4, 2, 3])

    def _weight(self, name: str) -> str:
        if name not in self._initializers:
            dims = self._shapes[name]
            if len(dims) == 2:
                dims = dims[::-1]
            if ".experts." in name and len(dims) == 2:
                k, n = dims
                dims = (self._config.n_experts, k, n // self._config.n_experts)
            self._initializers[name] = external_tensor(name, self.element, dims)
        return name

    def _rotate(self, x: str, n_heads: int, name: str, rope: Rope) -> str:
        inputs = [x, *self._rope(rope), POSITION_IDS]
        return self._node("RotaryEmbedding", inputs, name, num_heads=n_heads)

    def _rope(self, rope: Rope) -> tuple[str, str]:
        """Returns the names of the rotation tables of ``rope``, inputs that layers share."""
        names = rope_names(self._config, rope)
        for name in names:
            if name not in self._shared:
                self._shared.add(name)
                self._table(name, (rope.head_size or self._config.head_size) // 2)
        return names

    def _table(self, name: str, width: int) -> None:
        """Makes an input of a table with ``width`` numbers per position."""
        self._inputs.append(_value(name, self.element, ("positions", width)))

    def _kv_value(self, name: str, length: str, head_size: int) -> ValueInfoProto:
        dims = (1, self._config.n_kv_heads, length, head_size)
        return _value(name, self.element, dims)


def _value(name: str, element: int, dims: Sequence[int | str]) -> ValueInfoProto:
    return make_port(name, element, dims)
