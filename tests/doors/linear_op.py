"""Products of rows with packed matrices."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_bool, c_float, c_int, c_int64, c_void_p

import numpy as np

from edgedec.kernels.checks import Floats, expect, output, pointer
from edgedec.kernels.cpu import PackedMatrix, matrix_args, run
from edgedec.kernels.library import MatrixArgs


class LinearArgs(ctypes.Structure):
    """``LinearArgs`` of src/kernels.h."""

    _fields_ = (
        ("x", c_void_p),
        ("rows", c_int64),
        ("k", c_int64),
        ("norm_weight", c_void_p),
        ("epsilon", c_float),
        ("residual", c_void_p),
        ("matrices", MatrixArgs * 3),
        ("n_matrices", c_int),
        ("gate", c_bool),
        ("out", c_void_p),
    )


def linear(
    x: Floats,
    matrices: Sequence[PackedMatrix],
    *,
    norm_weight: Floats | None = None,
    epsilon: float = 0.0,
    residual: Floats | None = None,
    gate: bool = False,
    out: Floats | None = None,
    isa: str | None = None,
    n_threads: int = 1,
) -> Floats:
    """Returns the products of the rows, RMS-normed if there is a ``norm_weight``, side by side.

    With ``gate`` there are two matrices of equal n, and the result is silu of the first product
    times the second.

    Shapes: x [rows, k], norm_weight [k], residual [rows, sum of n] is added to the result
        [rows, sum of n], or [rows, n] with gate; all float32.
    """
    expect("x", x, np.float32, (-1, -1))
    rows, k = x.shape
    n_out = _check_matrices(matrices, k, gate)
    if gate and residual is not None:
        raise ValueError("gate expects no residual")
    out = output(out, (rows, n_out))
    args = LinearArgs(x.ctypes.data, rows, k, epsilon=epsilon, gate=gate)
    if norm_weight is not None:
        args.norm_weight = pointer("norm_weight", norm_weight, np.float32, (k,))
    if residual is not None:
        args.residual = pointer("residual", residual, np.float32, (rows, n_out))
    args.n_matrices = len(matrices)
    for i, matrix in enumerate(matrices):
        args.matrices[i] = matrix_args(matrix)
    args.out = out.ctypes.data
    run("linear", args, isa, n_threads)
    return out


def _check_matrices(matrices: Sequence[PackedMatrix], k: int, gate: bool) -> int:
    """Returns the width of the result."""
    if not 1 <= len(matrices) <= 3:
        raise ValueError(f"got {len(matrices)} matrices, expected 1 to 3")
    for matrix in matrices:
        if matrix.k != k:
            raise ValueError(f"a matrix is [{matrix.n}, {matrix.k}], expected {k} columns, as x")
    if not gate:
        return sum(matrix.n for matrix in matrices)
    if len(matrices) != 2 or matrices[0].n != matrices[1].n:
        raise ValueError(f"gate expects two matrices with equal n, got {[m.n for m in matrices]}")
    if any(matrix.bias is not None for matrix in matrices):
        raise ValueError("gate expects no bias")
    return matrices[0].n
