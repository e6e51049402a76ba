"""The graph of ONNX Runtime's own operators, which its providers have kernels for.

Its ports are those of the portable graph, row statistics besides. Weights are blocks of 4 or 8 bits
(`edgedec.export.to_onnx.nbits`). Keys and values may be longer than what is in them: an attention
bias as wide as the tokens before and of a pass says how much counts, so that the arrays that come
out may be those that go in, written in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from edgedec.export.to_onnx.emit import PortableEmitter
from edgedec.export.to_onnx.graph import external_tensor, place
from edgedec.export.to_onnx.make import element_of, make_node, make_opset, make_port, make_tensor
from edgedec.export.to_onnx.messages import ModelProto, NodeProto, TensorProto
from edgedec.export.to_onnx.nbits import OFFSET_GROUP, BlockLayout
from edgedec.export.weights_file import Chunks
from edgedec.models.config import ModelConfig
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.families import find_family, weight_shapes
from edgedec.models.graph import (
    ATTENTION_BIAS,
    INPUT_IDS,
    LOGITS,
    N_TOP,
    POSITION_IDS,
    ROW_STATS,
    past_port,
    present_port,
    stats_port,
)
from edgedec.models.quant import QuantFormat
from edgedec.models.rope import rope_of
from edgedec.models.weights import WeightSource

DOMAIN = "com.microsoft"
_TABLE = ".table"
_JOINT = "+"
_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Matrices that read the same, and are one where they have the same format."""

_LOWEST_BIAS = -60000.0
"""Least attention bias in float16; scores may be added to it."""

_INT8_ACTIVATIONS = 4
"""Accuracy level of products whose activations are rounded to 8 bits, in blocks as the weights."""


def emit_contrib(
    config: ModelConfig,
    formats: Mapping[str, QuantFormat],
    hidden_layers: Sequence[int] = (),
    element: int = TensorProto.FLOAT,
) -> ModelProto:
    """Returns the graph; its weights are references to bytes not yet written.

    Args:
        element: `TensorProto` data type it computes in, FLOAT or FLOAT16.
        formats: of every matrix; float ones are multiplied as ``element``.
        hidden_layers: layers (0: embeddings) whose residual stream becomes an output.
    """
    emitter = ContribEmitter(config, frozenset(hidden_layers), formats, element)
    logits = find_family(config.family).recipe(emitter, config)
    emitter.name_output(logits, LOGITS, (1, "R", config.n_logits))
    if config.n_logits >= N_TOP:
        emitter.add_row_stats()
    return emitter.model()


def block_chunks(
    model: ModelProto, source: WeightSource, formats: Mapping[str, QuantFormat]
) -> dict[str, Chunks]:
    """Returns what yields the arrays of each tensor that consists of blocks, or of joined vectors.

    source: of the weights. formats: of every matrix.
    """
    chunks: dict[str, Chunks] = {}
    shapes = weight_shapes(source.config)
    for tensor in model.graph.initializer:
        stem, _, part = tensor.name.rpartition(".")
        names = tensor.name.split(_JOINT) if part == "bias" else stem.split(_JOINT)
        if part == "codes":
            n, k = (sum(shapes[name][0] for name in names), shapes[names[0]][1])
            layout = BlockLayout(formats[names[0]], n, k)
            chunks |= {f"{stem}.{key}": of for key, of in layout.chunks(source, names).items()}
        elif part == "bias":
            chunks[tensor.name] = partial(map, source.vector, names)
    return chunks


def share_tables(model: ModelProto) -> None:
    """Lets embeddings read the codes that a tied LM head reads, once these have their place."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "GatherBlockQuantized":
            codes = tensors[node.input[0].replace(_TABLE, ".codes")]
            layout = codes.dims[0], codes.dims[1] * codes.dims[2]
            table = external_tensor(node.input[0], TensorProto.UINT8, layout)
            place(table, {entry.key: entry.value for entry in codes.external_data})
            model.graph.initializer.append(table)


class ContribEmitter(PortableEmitter):
    """`Ops` over names of graph values, each [1, T, features]."""

    def __init__(
        self,
        config: ModelConfig,
        hidden_layers: frozenset[int],
        formats: Mapping[str, QuantFormat],
        element: int = TensorProto.FLOAT,
    ) -> None:
        super().__init__(config, hidden_layers)
        self.element = element
        self._formats = formats
        self._adds: dict[str, NodeProto] = {}
        self._split: dict[str, str] = {}  # by weight, what a product with others has given of it
        self._whole: dict[tuple[str, ...], NodeProto] = {}
        self._seen: set[str] = set()

    def embed(self, weight: str) -> str:
        """Adds a GatherBlockQuantized, and the offsets of the rows if there are any."""
        if self._formats[weight].is_float:
            return super().embed(weight)
        layout = self._blocks((weight,))
        x = self._contrib(
            "GatherBlockQuantized", [weight + _TABLE, INPUT_IDS, f"{weight}.scales"], "embed.codes",
            gather_axis=0, quantize_axis=1, block_size=layout.block, bits=layout.bits,
        )  # fmt: skip
        if layout.format.has_minimum:
            x = self._with_offsets(x, weight)
        if layout.k % layout.block:
            for name, value in (("first", 0), ("stop", layout.k), ("axis", 2)):
                self._constant(f"embed.{name}", [value])
            x = self._node("Slice", [x, "embed.first", "embed.stop", "embed.axis"], "embed.row")
        return x

    def _with_offsets(self, x: str, weight: str) -> str:
        """Returns rows of the embedding ``x`` with the offsets of their groups added."""
        self._constant("groups", [0, 0, -1, OFFSET_GROUP])
        self._constant("joined", [0, 0, -1])
        self._constant("axis.last", [-1])
        gathered = self._node("Gather", [f"{weight}.offsets", INPUT_IDS], "embed.gathered", axis=1)
        rows = self._node("Transpose", [gathered], "embed.offsets", perm=[1, 2, 0])
        wide = self._node("Unsqueeze", [rows, "axis.last"], "embed.wide")
        groups = self._node("Reshape", [x, "groups"], "embed.groups")
        added = self._node("Add", [groups, wide], "embed.added")
        return self._node("Reshape", [added, "joined"], "embed.joined")

    def linear(self, x: str, weight: str, bias: str | None = None) -> str:
        """Adds a MatMulNBits, one for all that read ``x`` together, and an Add of the bias."""
        if self._formats[weight].is_float:
            return super().linear(x, weight, bias)
        if weight in self._split:
            return self._split.pop(weight)
        weights = self._companions(weight)
        biases = [name.removesuffix("weight") + "bias" for name in weights] if bias else []
        y = self._product(x, weights)
        if biases:
            y = self._node("Add", [y, self._joined_bias(biases)], f"{y}.biased")
        if len(weights) == 1:
            return y
        sizes = [self._shapes[name][0] for name in weights]
        parts = [f"{name.removesuffix('.weight')}.matmul" for name in weights]
        self._constant(f"{y}.sizes", sizes)
        split = make_node("Split", [y, f"{y}.sizes"], parts, name=f"{y}.split", axis=-1)
        self._nodes.append(split)
        self._split |= dict(zip(weights[1:], parts[1:], strict=True))
        self._whole[tuple(parts)] = split
        return parts[0]

    def _companions(self, weight: str) -> tuple[str, ...]:
        """Returns the matrices that are multiplied at once, of which ``weight`` is the first."""
        stem, _, name = weight.removesuffix(".weight").rpartition(".")
        for group in _TOGETHER:
            companions = tuple(f"{stem}.{part}.weight" for part in group)
            if name == group[0] and len({self._formats[part].name for part in companions}) == 1:
                return companions
        return (weight,)

    def _product(self, x: str, weights: Sequence[str]) -> str:
        """Adds a MatMulNBits of ``weights``, below each other, and what their offsets give."""
        layout, name = self._blocks(weights), _JOINT.join(weights)
        stem = "lm_head" if name == "embed_tokens.weight" else name.replace(".weight", "")
        y = self._contrib(
            "MatMulNBits", [x, f"{name}.codes", f"{name}.scales"], f"{stem}.matmul",
            K=layout.k, N=layout.n, bits=layout.bits, block_size=layout.block,
            accuracy_level=_INT8_ACTIVATIONS,
        )  # fmt: skip
        if not layout.format.has_minimum:
            return y
        sums = [self._group_sums(x, layout.k), f"{name}.offsets"]
        return self._node("Add", [y, self._node("MatMul", sums, f"{stem}.offset")], f"{stem}.sum")

    def _joined_bias(self, biases: Sequence[str]) -> str:
        name = _JOINT.join(biases)
        n = sum(self._shapes[bias][0] for bias in biases)
        self._initializers[name] = external_tensor(name, self.element, (n,))
        return name

    def embed_layers(self, weight: str) -> str:
        """Refuses: the operators for blocks read a table's rows one at a time."""
        raise UnsupportedModelError(
            "the target ort has no inputs of layers: export with --target cpu or portable"
        )

    def shared_attention(self, q: str, layer: int) -> str:
        """Refuses: keys and values of another layer are longer than what is in them."""
        raise UnsupportedModelError(
            "the target ort has no layers that share keys: export with --target cpu or portable"
        )

    def rms_norm(self, x: str, weight: str) -> str:
        """Adds a norm; into the addition that made ``x`` where it is the first to read it."""
        epsilon, stem = self._config.rms_norm_eps, weight.removesuffix(".weight")
        add = self._adds.pop(x, None)
        if add is None:
            return self._node(
                "SimplifiedLayerNormalization", [x, self._weight(weight)], stem,
                axis=-1, epsilon=epsilon,
            )  # fmt: skip
        fused = make_node(
            "SkipSimplifiedLayerNormalization",
            [*add.input, self._weight(weight)],
            [stem, "", "", x],
            name=stem,
            domain=DOMAIN,
            epsilon=epsilon,
        )
        add.CopyFrom(fused)
        return stem

    def add(self, a: str, b: str) -> str:
        """Adds an Add, which a norm may become part of."""
        total = super().add(a, b)
        self._adds[total] = self._nodes[-1]
        return total

    def attention(self, q: str, k: str, v: str, layer: int) -> str:
        """Adds rotations and a GroupQueryAttention; makes keys and values ports."""
        return self._group_query(q, k, v, layer)

    def sink_attention(self, q: str, k: str, v: str, layer: int, sinks: str) -> str:
        """Adds a GroupQueryAttention that has the sinks as an input."""
        return self._group_query(q, k, v, layer, self._weight(sinks))

    def _group_query(self, q: str, k: str, v: str, layer: int, *sinks: str) -> str:
        config, stem = self._config, f"layers.{layer}.self_attn"
        past = [past_port(layer, "key"), past_port(layer, "value")]
        present = [present_port(name) for name in past]
        self._inputs += [self._kv_value(name, "C", self._config.head_size) for name in past]
        self._outputs += [self._kv_value(name, "C", self._config.head_size) for name in present]
        attended, of_layer = f"{stem}.attend", config.layer(layer)
        rope = rope_of(of_layer)
        rotation = [*self._rope(rope), POSITION_IDS] if rope.theta else ["", "", ""]
        inputs = [*self._packed(q, k, v), *past, *self._lengths(), *rotation]
        attend = make_node(
            "GroupQueryAttention",
            [*inputs, self._short_bias(of_layer.window), *sinks],
            [attended, *present],
            name=attended,
            domain=DOMAIN,
            num_heads=config.n_heads,
            kv_num_heads=config.n_kv_heads,
            scale=config.attention_scale or None,
            softcap=config.attention_softcap or None,
            do_rotary=int(rope.theta > 0),
        )
        self._nodes.append(attend)
        return attended

    def _short_bias(self, window: int) -> str:
        """Returns the attention bias in the type of the scores, finite in float16, too."""
        bias = self._bias(window)
        if self.element == TensorProto.FLOAT:
            return bias
        short = f"{bias}.short"
        if short not in self._seen:
            self._seen.add(short)
            lowest = self._float("bias.lowest", _LOWEST_BIAS, TensorProto.FLOAT)
            finite = self._node("Max", [bias, lowest], f"{bias}.finite")
            self._node("Cast", [finite], short, to=self.element)
        return short

    def _packed(self, q: str, k: str, v: str) -> list[str]:
        """Returns q, k and v as the operator takes them: in a row, if a product gave them so."""
        split = self._whole.get((q, k, v))
        if split is None:
            return [q, k, v]
        self._nodes.remove(split)
        return [split.input[0], "", ""]

    def add_row_stats(self) -> None:
        """Makes the statistics of the logits outputs."""
        self._constant("stats.first", [0])
        self._constant("stats.last", [-1])
        self._constant("stats.n_top", [N_TOP])
        rows = self._node("Squeeze", [LOGITS, "stats.first"], "stats.rows")
        top = [stats_port("top_logits"), stats_port("top_ids")]
        self._nodes.append(make_node("TopK", [rows, "stats.n_top"], top, "stats.top"))
        self._initializers["stats.zero"] = make_tensor("stats.zero", TensorProto.INT64, [], [0])
        self._node("Gather", [top[1], "stats.zero"], stats_port("argmax"), axis=1)
        largest = self._node("Gather", [top[0], "stats.first"], "stats.largest", axis=1)
        shifted = self._node("Sub", [rows, largest], "stats.shifted")
        weights = self._node("Exp", [shifted], "stats.weights")
        total = self._node("ReduceSum", [weights, "stats.last"], "stats.total")
        log_total = self._node("Log", [total], "stats.log_total")
        log_sum = self._node("Add", [log_total, largest], "stats.log_sum")
        self._node("Squeeze", [log_sum, "stats.last"], stats_port("log_sum_exp"))
        products = self._node("Mul", [weights, shifted], "stats.products")
        moment = self._node("ReduceSum", [products, "stats.last"], "stats.moment")
        mean = self._node("Div", [moment, total], "stats.mean")
        entropy = self._node("Sub", [log_total, mean], "stats.entropies")
        self._node("Squeeze", [entropy, "stats.last"], stats_port("entropy"))
        for name, (dtype, sizes) in ROW_STATS.items():
            element = element_of(dtype)
            self._outputs.append(make_port(stats_port(name), element, ("R", *sizes)))

    def model(self) -> ModelProto:
        """Returns the finished model."""
        model = super().model()
        model.opset_import.append(make_opset(DOMAIN, 1))
        return model

    def _contrib(self, op_type: str, inputs: list[str], name: str, **attributes: Any) -> str:
        return self._node(op_type, inputs, name, domain=DOMAIN, **attributes)

    def _blocks(self, weights: Sequence[str]) -> BlockLayout:
        """Returns the layout of matrices below each other, whose tensors it adds."""
        n, k = (sum(self._shapes[name][0] for name in weights), self._shapes[weights[0]][1])
        layout, name = BlockLayout(self._formats[weights[0]], n, k), _JOINT.join(weights)
        blocks = n, layout.n_blocks
        tensors = [
            external_tensor(f"{name}.codes", TensorProto.UINT8, (*blocks, layout.block_nbytes)),
            external_tensor(f"{name}.scales", self.element, blocks),
        ]
        if layout.format.has_minimum:
            dims = (layout.n_groups, n)
            tensors.append(external_tensor(f"{name}.offsets", self.element, dims))
        self._initializers |= {tensor.name: tensor for tensor in tensors}
        return layout

    def _group_sums(self, x: str, k: int) -> str:
        """Returns the sums of groups of activations, which the matrices that read ``x`` share."""
        name = f"{x}.sums"
        if name in self._seen:
            return name
        self._seen.add(name)
        self._constant("groups", [0, 0, -1, OFFSET_GROUP])
        self._constant("axis.last", [-1])
        if k % OFFSET_GROUP:
            self._constant(f"fill.{k}", [0, 0, 0, 0, 0, -k % OFFSET_GROUP])
            x = self._node("Pad", [x, f"fill.{k}"], f"{x}.filled")
        groups = self._node("Reshape", [x, "groups"], f"{x}.groups")
        return self._node("ReduceSum", [groups, "axis.last"], name, keepdims=0)

    def _lengths(self) -> list[str]:
        """Returns tokens before and of the pass but one, and all of them, from the bias's width."""
        names = ["length.but_one", "length.all"]
        if names[0] not in self._seen:
            self._seen.add(names[0])
            length = make_tensor("length.one", TensorProto.INT32, [1], [1])
            self._initializers["length.one"] = length
            width = self._node("Shape", [ATTENTION_BIAS], "length.width", start=3, end=4)
            self._node("Cast", [width], names[1], to=TensorProto.INT32)
            self._node("Sub", [names[1], "length.one"], names[0])
        return names
