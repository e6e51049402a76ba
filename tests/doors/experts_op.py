"""Mixtures of experts: rows through the MLPs that their router scores choose."""

from __future__ import annotations

import ctypes
from ctypes import c_bool, c_float, c_int64, c_void_p
from dataclasses import dataclass

import numpy as np

from edgedec.kernels.checks import Bytes, Floats, expect, output, pointer
from edgedec.kernels.cpu import packed_nbytes, run
from edgedec.kernels.library import MatrixArgs

_ALIGNMENT = 4  # bytes, as of packed matrices


class ExpertsArgs(ctypes.Structure):
    """``ExpertsArgs`` of src/kernels.h."""

    _fields_ = (
        ("x", c_void_p),
        ("rows", c_int64),
        ("k", c_int64),
        ("norm_weight", c_void_p),
        ("epsilon", c_float),
        ("residual", c_void_p),
        ("router", c_void_p),
        ("n_experts", c_int64),
        ("n_used", c_int64),
        ("is_normed", c_bool),
        ("gate", MatrixArgs),
        ("up", MatrixArgs),
        ("down", MatrixArgs),
        ("out", c_void_p),
        ("gate_bias", c_void_p),
        ("up_bias", c_void_p),
        ("down_bias", c_void_p),
        ("limit", c_float),
    )


@dataclass(frozen=True, eq=False)
class PackedExperts:
    """Matrices [n, k] of one kind, one for each expert. Shapes: data [experts, bytes] uint8."""

    data: Bytes
    format: int
    n: int
    k: int

    def __post_init__(self) -> None:
        expect(
            "packed experts", self.data, np.uint8, (-1, packed_nbytes(self.format, self.n, self.k))
        )
        if rest := self.data.ctypes.data % _ALIGNMENT:
            raise ValueError(f"packed experts: got address % {_ALIGNMENT} = {rest}, expected 0")


def experts(
    x: Floats,
    router: Floats,
    matrices: tuple[PackedExperts, PackedExperts, PackedExperts],
    n_used: int,
    *,
    is_normed: bool = True,
    norm_weight: Floats | None = None,
    epsilon: float = 0.0,
    residual: Floats | None = None,
    biases: tuple[Floats, Floats, Floats] | None = None,
    limit: float = 0.0,
    out: Floats | None = None,
    isa: str | None = None,
    n_threads: int = 1,
) -> Floats:
    """Returns what the experts of the ``n_used`` largest scores make of each row, weighted.

    An expert is a gated MLP of ``matrices`` gate, up and down. Its weight is the softmax of the
    scores, over the chosen ones alone if ``is_normed``. Of equal scores the first is chosen. With a
    ``limit`` gate and up stay within it, as ``ExpertsArgs`` of src/kernels.h says.

    Shapes: x [rows, k], which is RMS-normed if there is a norm_weight [k]; router [rows, experts];
        residual [rows, k] is added to the result [rows, k]; biases of gate, up and down [experts,
        their n]; all float32.
    """
    gate, up, down = matrices
    expect("x", x, np.float32, (-1, -1))
    (rows, k), n_experts = x.shape, len(gate.data)
    _check(matrices, k, n_used)
    out = output(out, (rows, k))
    args = ExpertsArgs(x.ctypes.data, rows, k, epsilon=epsilon, is_normed=is_normed)
    if norm_weight is not None:
        args.norm_weight = pointer("norm_weight", norm_weight, np.float32, (k,))
    if residual is not None:
        args.residual = pointer("residual", residual, np.float32, (rows, k))
    args.router = pointer("router", router, np.float32, (rows, n_experts))
    args.n_experts, args.n_used = n_experts, n_used
    args.gate, args.up, args.down = (
        MatrixArgs(matrix.data.ctypes.data, None, matrix.format, matrix.n)
        for matrix in (gate, up, down)
    )
    args.out, args.limit = out.ctypes.data, limit
    if biases is not None:
        args.gate_bias, args.up_bias, args.down_bias = (
            pointer("bias", bias, np.float32, (n_experts, matrix.n))
            for bias, matrix in zip(biases, matrices, strict=True)
        )
    run("experts", args, isa, n_threads)
    return out


def _check(matrices: tuple[PackedExperts, ...], k: int, n_used: int) -> None:
    gate, _, _ = matrices
    n_experts, inner = len(gate.data), gate.n
    expected = [(n_experts, inner, k), (n_experts, inner, k), (n_experts, k, inner)]
    shapes = [(len(matrix.data), matrix.n, matrix.k) for matrix in matrices]
    if shapes != expected:
        raise ValueError(
            f"experts are {shapes} (experts, n, k of gate, up and down), expected {expected}"
        )
    if not 1 <= n_used <= n_experts:
        raise ValueError(f"n_used is {n_used}, expected 1 to {n_experts}")
