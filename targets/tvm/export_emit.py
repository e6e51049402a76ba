"""The graph that TVM compiles: a recipe written down in Relax, edgedec's operators in it.

Its ports are those of `edgedec.models.graph`. What the passes over an ONNX graph fuse is fused
here as it is written down: norms, projections and gates stay pending until somebody reads them,
and who reads them takes them in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tvm import relax

from edgedec.export.kv_panels import kv_place
from edgedec.export.weights_file import StoredTensor
from edgedec.kernels.cpu import packed_nbytes
from edgedec.models.blocks import Ops
from edgedec.models.config import ModelConfig
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.families import find_family, weight_shapes
from edgedec.models.graph import (
    ENTRY,
    INPUT_IDS,
    LAYER_GATES,
    LOGIT_ROWS,
    LOGITS,
    PARENTS,
    POSITION_IDS,
    ROW_STATS,
    hidden_port,
    stats_port,
)
from edgedec.models.kv_formats import kv_panels_of
from edgedec.models.quant import QuantFormat
from edgedec.models.rope import rope_names, rope_of
from edgedec.targets.tvm.export_node import Attribute, Node
from edgedec.targets.tvm.export_ports import make_inputs

RUN = "edgedec.run"
"""The function that the compiled program calls for every node."""

_LAYER = re.compile(r"layers\.(\d+)\.(self_attn|mlp)\.")
_NORM, _RESIDUAL, _MATRICES, _GATES = 1, 2, 3, 9
"""Ports of Linear."""


@dataclass(frozen=True)
class Normed:
    """The RMS norm of ``x``, pending."""

    x: Any
    weight: str


@dataclass(frozen=True)
class Product:
    """``x`` times a matrix, pending."""

    x: Value
    weight: str
    bias: str | None


@dataclass(frozen=True)
class HeadNormed:
    """The RMS norm of the heads of a product, pending."""

    product: Product
    weight: str


@dataclass(frozen=True)
class Mixed:
    """What experts make of ``x``, pending."""

    x: Value
    router: Any
    prefix: str


Value: TypeAlias = Any  # a Relax variable [1, T, features], or one of the above


@dataclass(frozen=True)
class RelaxGraph:
    """A graph in Relax, its ports in order, its nodes by number, its weights in order of use."""

    builder: relax.BlockBuilder
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    weights: tuple[StoredTensor, ...]


def emit_relax(
    config: ModelConfig,
    formats: dict[str, QuantFormat],
    hidden_layers: Sequence[int],
    kv_format: str = "float16",
) -> RelaxGraph:
    """Returns the graph; its weights are references to bytes not yet written.

    Args:
        formats: storage format of every matrix, by weight name.
        hidden_layers: layers (0: embeddings) whose residual stream becomes an output.

    Raises:
        UnsupportedModelError: The recipe asks for something that no operator of ours computes.
    """
    emitter = RelaxEmitter(config, formats, frozenset(hidden_layers), kv_format)
    return emitter.graph()


class RelaxEmitter(Ops[Value]):
    """`Ops` over Relax variables and what is pending."""

    def __init__(
        self,
        config: ModelConfig,
        formats: dict[str, QuantFormat],
        hidden_layers: frozenset[int],
        kv_format: str,
    ) -> None:
        self._config = config
        self._formats = formats
        self._hidden_layers = hidden_layers
        self._kv_format = kv_format
        self._shapes = weight_shapes(config)
        self._weights: dict[str, StoredTensor] = {}
        self._nodes: list[Node] = []
        self._outputs: dict[str, Any] = {}
        self._inputs = make_inputs(config, kv_format)
        self._builder = relax.BlockBuilder()

    def graph(self) -> RelaxGraph:
        """Returns the graph of the family's recipe."""
        bb = self._builder
        with bb.function("main", list(self._inputs.values())):
            with bb.dataflow():
                logits = self._made(find_family(self._config.family).recipe(self, self._config))
                self._outputs = {LOGITS: logits, **self._row_stats(logits), **self._outputs}
                values = bb.emit_output(relax.Tuple(list(self._outputs.values())))
            bb.emit_func_output(values)
        return RelaxGraph(
            bb,
            tuple(self._inputs),
            tuple(self._outputs),
            tuple(self._nodes),
            tuple(self._weights.values()),
        )

    def embed(self, weight: str) -> Value:
        """Adds an Embed, and what joins given hidden states to it."""
        table = self._matrix(weight)
        n, k = self._shapes[weight]
        node = Node(
            "Embed", (0,), {1: table}, {"format": self._formats[weight].index, "n": n, "k": k}
        )
        ids = self._inputs[INPUT_IDS]
        rows = self._run(node, [ids], (*ids.ty.shape.values, k))
        return self._builder.emit(relax.op.concat([rows, self._inputs[ENTRY]], axis=1))

    def rms_norm(self, x: Value, weight: str) -> Value:
        """Waits for a projection that takes the norm in."""
        self._vector(weight)
        return Normed(self._made(x), weight)

    def head_norm(self, x: Value, weight: str) -> Value:
        """Waits for the attention that the heads are for."""
        if not isinstance(x, Product):
            self._refuse("norms heads of something else than a projection")
        self._vector(weight)
        return HeadNormed(x, weight)

    def linear(self, x: Value, weight: str, bias: str | None = None) -> Value:
        """Waits for whoever takes the projection in, or reads it."""
        self._matrix(weight)
        if bias is not None:
            self._vector(bias)
        return Product(x if isinstance(x, Normed) else self._made(x), weight, bias)

    def attention(self, q: Value, k: Value, v: Value, layer: int) -> Value:
        """Adds an Attention over one Linear, with a HeadNorm between them if heads are normed."""
        config, rope = self._config, rope_of(self._config.layer(layer))
        qkv = self._joined(q, k, v)
        place = kv_place(config, layer)
        attributes: dict[str, Attribute] = {
            "layer": place.layer,
            "n_heads": config.n_heads,
            "n_kv_heads": config.n_kv_heads,
            "head_size": config.head_size,
            "kv_format": kv_panels_of(self._kv_format).index,
            "scale": float(config.attention_scale or 0),
            "softcap": float(config.attention_softcap or 0),
            "window": config.layer(layer).window or 0,
            "gate_index": 2 * layer,
        }
        tables = rope_names(config, rope)
        ports = (POSITION_IDS, PARENTS, place.sequences, *tables, *place.caches, LAYER_GATES)
        node = Node("Attention", tuple(range(9)), {}, attributes)
        inputs = [qkv, *(self._inputs[name] for name in ports)]
        return self._run(node, inputs, (*_rows(qkv), config.n_heads * config.head_size))

    def gate(self, gate: Value, up: Value) -> Value:
        """Adds a gated Linear."""
        if self._config.activation != "silu":
            self._refuse(f"has the activation {self._config.activation}")
        return self._linear([gate, up], is_gated=True)

    def experts(self, x: Value, router: Value, prefix: str) -> Value:
        """Waits for the residual stream that the experts add to."""
        for name in ("gate_proj", "up_proj", "down_proj"):
            self._matrix(f"{prefix}.{name}.weight")
        return Mixed(x, self._made(router), prefix)

    def add(self, a: Value, b: Value) -> Value:
        """Adds a Linear, or Experts, that adds to the residual stream."""
        if isinstance(b, Product):
            return self._linear([b], residual=self._made(a))
        if isinstance(b, Mixed):
            return self._experts(b, self._made(a))
        return self._refuse("norms what it adds to the residual stream")

    def scale(self, x: Value, factor: float) -> Value:
        """Refuses: there is no operator for it."""
        return self._refuse("scales activations")

    def soft_cap(self, x: Value, bound: float) -> Value:
        """Refuses: there is no operator for it."""
        return self._refuse("bends logits towards a bound")

    def select_rows(self, x: Value) -> Value:
        """Adds what takes the rows whose logits are asked for."""
        return self._builder.emit(relax.op.take(x, self._inputs[LOGIT_ROWS], axis=1, mode="clip"))

    def hidden(self, x: Value, layer: int) -> None:
        """Makes ``x`` an output, if ``layer`` is among the chosen."""
        if layer in self._hidden_layers:
            self._outputs[hidden_port(layer)] = self._made(x)

    def _made(self, value: Value) -> Any:
        """Returns the variable of ``value``; a projection is computed now."""
        if isinstance(value, Product):
            return self._linear([value])
        if isinstance(value, (Normed, HeadNormed, Mixed)):
            self._refuse("reads a norm, or experts, where no operator takes them in")
        return value

    def _joined(self, q: Value, k: Value, v: Value) -> Any:
        """Returns queries, keys and values in a row."""
        norms = [part for part in (q, k) if isinstance(part, HeadNormed)]
        parts = [part.product if isinstance(part, HeadNormed) else part for part in (q, k, v)]
        qkv = self._linear(parts)
        if not norms:
            return qkv
        config = self._config
        weights = {1 + i: self._vector(norm.weight) for i, norm in enumerate(norms)}
        attributes: dict[str, Attribute] = {
            "n_heads": config.n_heads,
            "n_kv_heads": config.n_kv_heads,
            "epsilon": config.rms_norm_eps,
        }
        return self._run(Node("HeadNorm", (0,), weights, attributes), [qkv], qkv.ty.shape.values)

    def _linear(
        self, products: Sequence[Product], residual: Any = None, is_gated: bool = False
    ) -> Any:
        """Returns what one Linear computes of products of the same input."""
        if any(not isinstance(p, Product) or p.x != products[0].x for p in products):
            self._refuse("joins what are no projections of one input")
        x, first = products[0].x, products[0].weight
        constants, inputs, ports = {}, [x], [0]
        if isinstance(x, Normed):
            constants[_NORM], inputs = self._vector(x.weight), [x.x]
        if residual is not None:
            inputs.append(residual)
            ports.append(_RESIDUAL)
        for i, product in enumerate(products):
            constants[_MATRICES + 2 * i] = self._matrix(product.weight)
            if product.bias is not None:
                constants[_MATRICES + 2 * i + 1] = self._vector(product.bias)
        sizes = tuple(self._shapes[product.weight][0] for product in products)
        attributes: dict[str, Attribute] = {
            "formats": tuple(self._formats[product.weight].index for product in products),
            "n": sizes,
            "k": self._shapes[first][1],
            "epsilon": self._config.rms_norm_eps,
            "gate": int(is_gated),
            **self._gate_of(first, inputs, ports, _GATES),
        }
        n_out = sizes[0] if is_gated else sum(sizes)
        node = Node("Linear", tuple(ports), constants, attributes)
        return self._run(node, inputs, (*_rows(inputs[0]), n_out))

    def _experts(self, mixed: Mixed, residual: Any) -> Any:
        """Returns the residual stream plus what experts make of their input."""
        config, constants, inputs = self._config, {}, [mixed.x]
        if isinstance(mixed.x, Normed):
            constants[1], inputs = self._vector(mixed.x.weight), [mixed.x.x]
        names = [f"{mixed.prefix}.{part}_proj.weight" for part in ("gate", "up", "down")]
        constants |= {4 + i: self._matrix(name) for i, name in enumerate(names)}
        ports = [0, 2, 3]
        inputs += [residual, mixed.router]
        attributes: dict[str, Attribute] = {
            "formats": tuple(self._formats[name].index for name in names),
            "k": config.hidden_size,
            "n": self._shapes[names[0]][0] // config.n_experts,
            "n_experts": config.n_experts,
            "n_used": config.n_experts_used,
            "normed": int(config.is_routing_normed),
            "epsilon": config.rms_norm_eps,
            **self._gate_of(names[0], inputs, ports, 7),
        }
        node = Node("Experts", tuple(ports), constants, attributes)
        return self._run(node, inputs, residual.ty.shape.values)

    def _gate_of(
        self, weight: str, inputs: list[Any], ports: list[int], port: int
    ) -> dict[str, Attribute]:
        """Returns which sub-layer ``weight`` is of, and adds the gates to the inputs if any."""
        if (match := _LAYER.match(weight)) is None:
            return {}
        inputs.append(self._inputs[LAYER_GATES])
        ports.append(port)
        return {"gate_index": 2 * int(match[1]) + (match[2] == "mlp")}

    def _row_stats(self, logits: Any) -> dict[str, Any]:
        rows = _rows(logits)[1]
        types = [relax.TensorType((rows, *sizes), dtype) for dtype, sizes in ROW_STATS.values()]
        stats = self._call(Node("RowStats", (0,)), [logits], types)
        return {
            stats_port(name): self._builder.emit(relax.TupleGetItem(stats, i))
            for i, name in enumerate(ROW_STATS)
        }

    def _run(self, node: Node, inputs: Sequence[Any], shape: Sequence[Any]) -> Any:
        return self._call(node, inputs, relax.TensorType(tuple(shape), "float32"))

    def _call(self, node: Node, inputs: Sequence[Any], types: Any) -> Any:
        self._nodes.append(node)
        arguments = [relax.prim_value(len(self._nodes) - 1), *inputs]
        return self._builder.emit(relax.call_dps_packed(RUN, relax.Tuple(arguments), types))

    def _matrix(self, name: str) -> StoredTensor:
        """Returns a matrix, or those of all experts, as packed bytes."""
        n, k = self._shapes[name]
        fmt = self._formats[name].index
        if ".experts." not in name:
            return self._stored(StoredTensor(name, True, (packed_nbytes(fmt, n, k),)))
        n_experts = self._config.n_experts
        nbytes = packed_nbytes(fmt, n // n_experts, k)
        return self._stored(StoredTensor(name, True, (n_experts, nbytes)))

    def _vector(self, name: str) -> StoredTensor:
        return self._stored(StoredTensor(name, False, self._shapes[name]))

    def _stored(self, tensor: StoredTensor) -> StoredTensor:
        return self._weights.setdefault(tensor.name, tensor)

    def _refuse(self, what: str) -> Any:
        raise UnsupportedModelError(
            f"the recipe of {self._config.family} {what}, which the compiler tvm has no operator "
            "for: export without --compiler"
        )


def _rows(value: Any) -> tuple[Any, Any]:
    """Returns the sizes of ``value`` [1, T, features] without the last."""
    unit, n_rows, _ = value.ty.shape.values
    return unit, n_rows
