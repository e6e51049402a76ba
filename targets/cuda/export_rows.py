"""Kernels over rows of activations, one or a few threads for each number."""

from __future__ import annotations

import math

from tvm import te, tirx
from tvm.s_tir import Schedule

from edgedec.models.config import Activation
from edgedec.targets.cuda.export_kernel import Expr, Kernel, constant, of_tensors, placeholder
from edgedec.targets.cuda.export_products import StoredMatrix

_NORM_THREADS = 128


def embed(rows: int, matrix: StoredMatrix, scale: float) -> Kernel:
    """Returns ``y = scale * table[ids]``. Arguments: ids [rows] int32; the matrix; y [rows, k]."""
    ids, parts = placeholder("ids", rows, dtype="int32"), matrix.arguments()
    y = te.compute(
        (rows, matrix.k), lambda m, j: matrix.weight(parts, ids[m], j) * constant(scale), name="y"
    )
    return of_tensors(f"embed_{rows}_{matrix.key}", [ids, *parts, y])


def take_rows(rows_in: int, rows_out: int, width: int) -> Kernel:
    """Returns ``y = x[places]``. Arguments: x [rows_in, width]; places [rows_out] int32; y."""
    x, places = placeholder("x", rows_in, width), placeholder("places", rows_out, dtype="int32")
    y = te.compute((rows_out, width), lambda m, j: x[places[m], j], name="y")
    return of_tensors(f"take_{rows_in}_{rows_out}_{width}", [x, places, y])


def rms_norm(rows: int, n_heads: int, width: int, epsilon: float) -> Kernel:
    """Returns the RMS norm of each part of each row, times a weight.

    Arguments: x [rows, n_heads * width]; weight [width]; y like x.
    """
    x, weight = placeholder("x", rows, n_heads * width), placeholder("weight", width)
    along = te.reduce_axis((0, width), name="k")
    squares = te.compute(
        (rows, n_heads),
        lambda m, h: te.sum(x[m, h * width + along] * x[m, h * width + along], along),
        name="squares",
    )

    def normed(m: Expr, h: Expr, j: Expr) -> Expr:
        mean = squares[m, h] * constant(1 / width)
        root = te.rsqrt(mean + constant(epsilon))
        return x[m, h * width + j] * root * weight[j]

    y = te.compute((rows, n_heads, width), normed, name="y")
    function = te.create_prim_func([x, weight, y])
    return Kernel(f"norm_{rows}_{n_heads}_{width}", function, _norm_on_gpu)


def gate(rows: int, width: int, activation: Activation, is_joined: bool) -> Kernel:
    """Returns ``y = activation(g) * u``.

    Arguments: g, u [rows, width], or both as the columns of one matrix; y [rows, width].
    """
    names, n_columns = (("gu",), 2 * width) if is_joined else (("g", "u"), width)
    inputs = [placeholder(name, rows, n_columns) for name in names]
    first = width if is_joined else 0

    def gated(m: Expr, j: Expr) -> Expr:
        value, factor = inputs[0][m, j], inputs[-1][m, first + j]
        if activation == "silu":
            return value / (constant(1) + te.exp(-value)) * factor
        cube = value * value * value
        inner = constant(math.sqrt(2 / math.pi)) * (value + constant(0.044715) * cube)
        return constant(0.5) * value * (constant(1) + te.tanh(inner)) * factor

    y = te.compute((rows, width), gated, name="y")
    return of_tensors(f"gate_{rows}_{width}_{activation}{'_joined' * is_joined}", [*inputs, y])


def add(rows: int, width: int) -> Kernel:
    """Returns ``y = a + b``. Arguments: a, b, y, each [rows, width]."""
    a, b = placeholder("a", rows, width), placeholder("b", rows, width)
    y = te.compute((rows, width), lambda m, j: a[m, j] + b[m, j], name="y")
    return of_tensors(f"add_{rows}_{width}", [a, b, y])


def scale(rows: int, width: int, factor: float) -> Kernel:
    """Returns ``y = factor * x``. Arguments: x, y, each [rows, width]."""
    x = placeholder("x", rows, width)
    y = te.compute((rows, width), lambda m, j: x[m, j] * constant(factor), name="y")
    return of_tensors(f"scale_{rows}_{width}_{digits(factor)}", [x, y])


def soft_cap(rows: int, width: int, bound: float) -> Kernel:
    """Returns ``y = bound * tanh(x / bound)``. Arguments: x, y, each [rows, width]."""
    x = placeholder("x", rows, width)
    y = te.compute((rows, width), lambda m, j: capped(x[m, j], bound), name="y")
    return of_tensors(f"cap_{rows}_{width}_{digits(bound)}", [x, y])


def capped(value: Expr, bound: float) -> Expr:
    """Returns ``value`` bent towards ``bound``; as it is where that is 0."""
    return tirx.tanh(value * constant(1 / bound)) * constant(bound) if bound else value


def _norm_on_gpu(schedule: Schedule) -> None:
    """A block for each part of a row, whose threads sum the squares together."""
    squares, y = map(schedule.get_sblock, ("squares", "y"))
    m, h, j = schedule.get_loops(y)
    part = schedule.fuse(m, h)
    schedule.bind(part, "blockIdx.x")
    _, tx = schedule.split(j, [None, _NORM_THREADS])
    schedule.bind(tx, "threadIdx.x")
    schedule.set_scope(squares, 0, "shared")
    schedule.compute_at(squares, part, preserve_unit_loops=True)
    _, tx = schedule.split(schedule.get_loops(squares)[-1], [None, _NORM_THREADS])
    schedule.bind(tx, "threadIdx.x")


def digits(value: float) -> str:
    """Returns ``value`` as a part of a name."""
    return value.hex().replace(".", "_").replace("-", "m").replace("+", "")
