"""The program that a GPU runs: a recipe written down as launches of kernels.

Every kind of pass is written down by itself, for its sizes are fixed: what changes from pass to
pass, the length of the text too, is read by the kernels from `PassInputs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import NamedTuple

from edgedec.export.weights_file import StoredTensor, offsets_of
from edgedec.kernels.device_program import (
    INPUTS,
    KEYS,
    MAX_TREE,
    VALUES,
    WEIGHTS,
    Argument,
    DevicePass,
    KeepInputs,
    KernelLaunch,
    PassInputs,
)
from edgedec.models.blocks import Ops
from edgedec.models.config import ModelConfig
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.families import find_family, weight_shapes
from edgedec.models.graph import LOGITS, N_TOP, ROW_STATS, hidden_port, stats_port
from edgedec.models.quant import QuantFormat
from edgedec.models.rope import rope_names, rope_of
from edgedec.targets.cuda import export_attention as attention
from edgedec.targets.cuda import export_rows as rows
from edgedec.targets.cuda import export_stats as stats
from edgedec.targets.cuda.export_joined import bias_name, join
from edgedec.targets.cuda.export_kernel import Kernel
from edgedec.targets.cuda.export_memory import Layout, Part, Place, Value, lay_out, parts, value_of
from edgedec.targets.cuda.export_products import StoredMatrix, product
from edgedec.targets.cuda.export_stored import tensors_of

PASSES = ((1, 1), (4, 4), (8, 8), (16, 16), (64, 1))
"""Rows of each kind of pass, and of how many of them it gives logits."""


class ActivationRows(NamedTuple):
    """Rows of activations: where they are, how many, and how wide."""

    place: Place
    n_rows: int
    width: int


@dataclass(frozen=True)
class Pending:
    """A product that waits for a residual stream to be added to."""

    x: ActivationRows
    weight: str
    bias: str | None


Activation = ActivationRows | Pending


@dataclass(frozen=True)
class Emitted:
    """Launches of all passes. n_work: bytes of working memory. n_kv: of keys, and of values."""

    passes: tuple[DevicePass, ...]
    keep: KernelLaunch
    kernels: tuple[Kernel, ...]
    n_work: int
    n_inputs: int
    n_kv: int


class Weights:
    """The tensors of the weights file, and where in it each is."""

    def __init__(self, config: ModelConfig, context: int, formats: dict[str, QuantFormat]) -> None:
        shapes = weight_shapes(config)
        matrices = {
            name: StoredMatrix.of(shape[0], shape[1], formats[name])
            for name, shape in shapes.items()
            if len(shape) == 2
        }
        self.matrices, self.parts = join(config, matrices)
        tensors = {t.name: t for name, m in self.matrices.items() for t in tensors_of(name, m)}
        for name, shape in shapes.items():
            if len(shape) == 1:
                tensors[name] = StoredTensor(name, False, shape)
        self.joined_biases = {
            bias_name(name): tuple(map(bias_name, parts))
            for name, parts in self.parts.items()
            if bias_name(parts[0]) in tensors
        }
        for name, biases in self.joined_biases.items():
            size = sum(tensors.pop(bias).dims[0] for bias in biases)
            tensors[name] = StoredTensor(name, False, (size,))
        for rope in {rope_of(config.layer(i)) for i in range(config.n_layers)}:
            for name in rope_names(config, rope):
                tensors[name] = StoredTensor(name, False, (context, config.head_size // 2))
        self.tensors = tuple(tensors.values())
        self._offsets = offsets_of(self.tensors)
        last = self.tensors[-1]
        self.n_bytes = self._offsets[last.name] + last.nbytes

    def joined(self, names: Sequence[str]) -> str | None:
        """Returns the matrix that ``names`` are the rows of, if they are joined."""
        return next((name for name, p in self.parts.items() if p == tuple(names)), None)

    def vector(self, name: str) -> Argument:
        """Returns where a vector, or a table of rotations, is."""
        return Argument(WEIGHTS, self._offsets[name])

    def matrix(self, name: str) -> list[Argument]:
        """Returns where the parts of a matrix are."""
        return [self.vector(tensor.name) for tensor in tensors_of(name, self.matrices[name])]


def check_supported(config: ModelConfig) -> None:
    """Raises an UnsupportedModelError where a recipe has what there are no kernels for."""
    refused = {
        "attends to windows": bool(config.windowed_layers),
        "chooses experts": bool(config.n_experts),
    }
    for what, is_so in refused.items():
        if is_so:
            raise UnsupportedModelError(
                f"{config.family} {what}, which the compiler cuda has no kernels for: export with "
                "--target ort or --target cpu"
            )
    if config.hidden_size % 8 or config.head_size % 2:
        raise UnsupportedModelError(
            f"rows of {config.hidden_size} numbers are read 8 at a time: export with --target ort"
        )


def emit_program(
    config: ModelConfig, context: int, weights: Weights, hidden_layers: Sequence[int]
) -> Emitted:
    """Returns the launches of all kinds of passes, and the kernels they are of.

    hidden_layers: layers (0: embeddings) whose residual stream is an output.
    """
    capacity = -(-(context + PASSES[-1][0]) // attention.SPLIT) * attention.SPLIT
    kernels: dict[str, Kernel] = {}
    passes, n_work, n_inputs = [], 0, KeepInputs().nbytes
    for n_rows, n_results in PASSES:
        inputs = PassInputs(n_rows, n_results)
        emitter = CudaEmitter(
            config, weights, frozenset(hidden_layers), capacity, (n_rows, n_results), inputs
        )
        program, layout = emitter.device_pass()
        kernels |= emitter.kernels
        passes.append(program)
        n_work, n_inputs = max(n_work, layout.size), max(n_inputs, inputs.nbytes)
    keep = attention.keep(config.n_layers, emitter.shape, MAX_TREE)
    kernels[keep.name] = keep
    argument = (Argument(INPUTS, offset) for offset in KeepInputs().offsets.values())
    arguments = (Argument(KEYS, 0), Argument(VALUES, 0), *argument)
    n_kv = config.n_kv_numbers * capacity
    return Emitted(
        tuple(passes), KernelLaunch(keep.name, arguments), tuple(kernels.values()), n_work,
        n_inputs, n_kv,
    )  # fmt: skip


class CudaEmitter(Ops[Activation]):
    """`Ops` over rows in the device's memory, for one kind of pass."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        hidden_layers: frozenset[int],
        capacity: int,
        sizes: tuple[int, int],
        inputs: PassInputs,
    ) -> None:
        self._config = config
        self._weights = weights
        self._hidden_layers = hidden_layers
        self._n_rows, self._n_results = sizes
        self._inputs = inputs
        self._launches: list[tuple[str, list[Place]]] = []
        self._values: list[Value] = []
        self._outputs: dict[str, Value | Part] = {}
        self.kernels: dict[str, Kernel] = {}
        self.shape = attention.AttentionShape(
            self._n_rows, config.n_heads, config.n_kv_heads, config.head_size, capacity,
            config.product_scale, config.attention_softcap,
        )  # fmt: skip

    def device_pass(self) -> tuple[DevicePass, Layout]:
        """Returns the pass of the family's recipe, and the working memory it needs."""
        recipe = find_family(self._config.family).recipe
        logits = self._made(recipe(self, self._config))
        self._output(LOGITS, logits.place)
        self._row_stats(logits)
        layout = lay_out(self._values)
        launches = tuple(
            KernelLaunch(name, tuple(map(layout.argument, places)))
            for name, places in self._launches
        )
        outputs = {name: layout.offset(place) for name, place in self._outputs.items()}
        return DevicePass(self._n_rows, self._n_results, launches, outputs), layout

    def embed(self, weight: str) -> ActivationRows:
        """Launches a gather of rows."""
        matrix = self._weights.matrices[weight]
        kernel = rows.embed(self._n_rows, matrix, 1.0)
        y = self._new(self._n_rows, matrix.k)
        self._launch(kernel, self._input("ids"), *self._weights.matrix(weight), y.place)
        return y

    def rms_norm(self, x: Activation, weight: str) -> ActivationRows:
        """Launches a norm of rows."""
        return self._normed(self._made(x), weight, 1)

    def head_norm(self, x: Activation, weight: str) -> ActivationRows:
        """Launches a norm of the heads of rows."""
        made = self._made(x)
        return self._normed(made, weight, made.width // self._config.head_size)

    def linear(self, x: Activation, weight: str, bias: str | None = None) -> Pending:
        """Waits for a residual stream, or for whoever reads it."""
        return Pending(self._made(x), weight, bias)

    def attention(self, q: Activation, k: Activation, v: Activation, layer: int) -> ActivationRows:
        """Launches an append to the KV cache, and the two steps of an attention."""
        shape = self.shape
        n_bytes = 2 * shape.n_kv_heads * shape.head_size * shape.capacity
        cache = [Argument(name, layer * n_bytes) for name in (KEYS, VALUES)]
        queries = self._appended([q, k, v], layer, cache)
        heads, scalars = (self._n_rows, shape.n_heads), self._input("scalars")
        sums = self._new(*heads, shape.n_splits * shape.head_size)
        totals, tops = (self._new(*heads, shape.n_splits) for _ in range(2))
        self._launch(
            attention.partials(shape), queries.place, *cache, self._input("seen"),
            self._input("mask"), scalars, sums.place, totals.place, tops.place,
        )  # fmt: skip
        y = self._new(self._n_rows, shape.n_heads * shape.head_size)
        self._launch(
            attention.combine(shape), sums.place, totals.place, tops.place, scalars, y.place
        )
        return y

    def gate(self, gate: Activation, up: Activation) -> ActivationRows:
        """Launches an activation and a product of numbers."""
        inputs = self._together([gate, up])
        width = sum(x.width for x in inputs) // 2
        y = self._new(inputs[0].n_rows, width)
        kernel = rows.gate(y.n_rows, width, self._config.activation, len(inputs) == 1)
        self._launch(kernel, *(x.place for x in inputs), y.place)
        return y

    def experts(self, x: Activation, router: Activation, prefix: str) -> ActivationRows:
        """Is not called: `check_supported` refuses such models."""
        raise AssertionError(prefix)

    def add(self, a: Activation, b: Activation) -> ActivationRows:
        """Launches a product that adds to the residual stream, or a sum."""
        residual = self._made(a)
        if isinstance(b, Pending):
            return self._product(b, residual)
        y = self._new(residual.n_rows, residual.width)
        kernel = rows.add(residual.n_rows, residual.width)
        self._launch(kernel, residual.place, b.place, y.place)
        return y

    def scale(self, x: Activation, factor: float) -> ActivationRows:
        """Launches a product with a constant."""
        made = self._made(x)
        return self._mapped(rows.scale(made.n_rows, made.width, factor), made)

    def soft_cap(self, x: Activation, bound: float) -> ActivationRows:
        """Launches a bend towards a bound."""
        made = self._made(x)
        return self._mapped(rows.soft_cap(made.n_rows, made.width, bound), made)

    def select_rows(self, x: Activation) -> ActivationRows:
        """Launches a gather of the rows whose logits are asked for."""
        made = self._made(x)
        y = self._new(self._n_results, made.width)
        kernel = rows.take_rows(made.n_rows, self._n_results, made.width)
        self._launch(kernel, made.place, self._input("results"), y.place)
        return y

    def hidden(self, x: Activation, layer: int) -> None:
        """Makes ``x`` an output, if ``layer`` is among the chosen."""
        if layer in self._hidden_layers:
            self._output(hidden_port(layer), self._made(x).place)

    def _made(self, value: Activation) -> ActivationRows:
        """Returns rows; a product that waits is launched."""
        return self._product(value, None) if isinstance(value, Pending) else value

    def _together(self, values: Sequence[Activation]) -> list[ActivationRows]:
        """Returns rows of each of ``values``, or one row of all where their matrices are joined."""
        waiting = [value for value in values if isinstance(value, Pending)]
        name = self._weights.joined([pending.weight for pending in waiting])
        if name is None:
            return [self._made(value) for value in values]
        bias = bias_name(name) if waiting[0].bias is not None else None
        return [self._product(Pending(waiting[0].x, name, bias), None)]

    def _product(self, pending: Pending, residual: ActivationRows | None) -> ActivationRows:
        matrix, x = self._weights.matrices[pending.weight], pending.x
        kernel = product(x.n_rows, matrix, pending.bias is not None, residual is not None)
        y = self._new(x.n_rows, matrix.n)
        extra: list[Place] = [] if pending.bias is None else [self._weights.vector(pending.bias)]
        if residual is not None:
            extra.append(residual.place)
        self._launch(kernel, x.place, *self._weights.matrix(pending.weight), *extra, y.place)
        return y

    def _normed(self, x: ActivationRows, weight: str, n_heads: int) -> ActivationRows:
        epsilon = self._config.rms_norm_eps
        kernel = rows.rms_norm(x.n_rows, n_heads, x.width // n_heads, epsilon)
        y = self._new(x.n_rows, x.width)
        self._launch(kernel, x.place, self._weights.vector(weight), y.place)
        return y

    def _appended(
        self, qkv: Sequence[Activation], layer: int, cache: Sequence[Argument]
    ) -> ActivationRows:
        """Launches rotations and an append to the KV cache; returns the rotated queries."""
        inputs, rope = self._together(qkv), rope_of(self._config.layer(layer))
        n_angles, rotation = 0, list[Argument]()
        if rope.theta:
            names = rope_names(self._config, rope)
            n_angles = self._rope_rows(names[0])
            rotation = [*map(self._weights.vector, names), self._input("positions")]
        y = self._new(self._n_rows, self.shape.n_heads * self.shape.head_size)
        kernel = attention.rotate_append(self.shape, n_angles, len(inputs) == 1)
        places = [x.place for x in inputs]
        self._launch(kernel, *places, *rotation, self._input("slots"), *cache, y.place)
        return y

    def _rope_rows(self, name: str) -> int:
        return next(t.dims[0] for t in self._weights.tensors if t.name == name)

    def _mapped(self, kernel: Kernel, x: ActivationRows) -> ActivationRows:
        y = self._new(x.n_rows, x.width)
        self._launch(kernel, x.place, y.place)
        return y

    def _row_stats(self, logits: ActivationRows) -> None:
        """Launches the steps from logits to their statistics."""
        n_rows = logits.n_rows
        lists = [
            [self._new(n_rows, n * size).place for size in (N_TOP, N_TOP, 3)]
            for n in stats.LISTS[:-1]
        ]
        self._launch(stats.scan(n_rows, logits.width), logits.place, *lists[0])
        for step, (inputs, out) in enumerate(pairwise(lists)):
            self._launch(stats.merge(n_rows, step), *inputs, *out)
        n_bytes = [4 * n_rows * prod(sizes) for _, sizes in ROW_STATS.values()]
        outputs = parts(n_bytes)  # so that one copy reads them all
        self._values.append(outputs[0].value)
        self._launch(stats.finish(n_rows), *lists[-1], *outputs)
        for name, place in zip(ROW_STATS, outputs, strict=True):
            self._output(stats_port(name), place)

    def _new(self, n_rows: int, *sizes: int) -> ActivationRows:
        """Returns rows of 32-bit numbers without a place yet."""
        width = 1
        for size in sizes:
            width *= size
        value = Value(4 * n_rows * width)
        self._values.append(value)
        return ActivationRows(value, n_rows, width)

    def _input(self, name: str) -> Argument:
        return Argument(INPUTS, self._inputs.offsets[name])

    def _output(self, name: str, place: Place) -> None:
        assert not isinstance(place, Argument)
        value_of(place).is_output = True
        self._outputs[name] = place

    def _launch(self, kernel: Kernel, *places: Place) -> None:
        self.kernels.setdefault(kernel.name, kernel)
        for place in places:
            if not isinstance(place, Argument):
                value = value_of(place)
                value.first = len(self._launches) if value.first < 0 else value.first
                value.last = len(self._launches)
        self._launches.append((kernel.name, list(places)))
