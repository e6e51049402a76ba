"""RMS norms of the heads of queries, of keys and of values."""

from __future__ import annotations

import ctypes
from ctypes import c_bool, c_float, c_int64, c_void_p

import numpy as np

from edgedec.kernels.checks import Floats, expect, output, pointer
from edgedec.kernels.cpu import run


class HeadNormArgs(ctypes.Structure):
    """``HeadNormArgs`` of src/kernels.h."""

    _fields_ = (
        ("qkv", c_void_p),
        ("rows", c_int64),
        ("n_heads", c_int64),
        ("n_kv_heads", c_int64),
        ("head_size", c_int64),
        ("q_weight", c_void_p),
        ("k_weight", c_void_p),
        ("epsilon", c_float),
        ("out", c_void_p),
        ("norms_values", c_bool),
    )


def head_norm(
    qkv: Floats,
    weights: tuple[Floats, Floats],
    n_kv_heads: int,
    epsilon: float,
    *,
    norms_values: bool = False,
    out: Floats | None = None,
    isa: str | None = None,
    n_threads: int = 1,
) -> Floats:
    """Returns ``qkv`` with every head of queries and of keys RMS-normed.

    Values are copied, or normed without weights. Without KV heads there are queries alone.

    Shapes: qkv [rows, (H + 2 Hkv) * d] float32, ``weights`` of queries and of keys [d] float32;
        result as qkv (``out`` if given).
    """
    q_weight, k_weight = weights
    expect("q_weight", q_weight, np.float32, (-1,))
    expect("qkv", qkv, np.float32, (-1, -1))
    (d,), (rows, width) = q_weight.shape, qkv.shape
    n_heads = width // d - 2 * n_kv_heads if d else 0
    if n_heads < 1 or n_kv_heads < 0 or width % d:
        raise ValueError(
            f"qkv {list(qkv.shape)} has not {n_kv_heads} heads of {d} keys, as many of values, and"
            " one of queries or more"
        )
    out = output(out, (rows, width))
    args = HeadNormArgs(
        qkv.ctypes.data, rows, n_heads, n_kv_heads, d, q_weight.ctypes.data,
        pointer("k_weight", k_weight, np.float32, (d,)), epsilon, out.ctypes.data,
        norms_values,
    )  # fmt: skip
    run("head_norm", args, isa, n_threads)
    return out
