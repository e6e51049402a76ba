"""Gated causal convolutions, whose rows are kept in place."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p

import numpy as np

from edgedec.kernels.checks import Floats, Integers, expect, expect_range, output, pointer
from edgedec.kernels.cpu import run


class ShortConvArgs(ctypes.Structure):
    """``ShortConvArgs`` of src/kernels.h."""

    _fields_ = (
        ("bcx", c_void_p),
        ("parents", c_void_p),
        ("rows", c_int64),
        ("known", c_int64),
        ("past", c_int64),
        ("channels", c_int64),
        ("size", c_int64),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("n_kept", c_int64),
        ("kept", c_void_p),
        ("out", c_void_p),
    )


def short_conv(
    bcx: Floats,
    parents: Integers,
    weight: Floats,
    kept: Floats,
    past: int,
    *,
    bias: Floats | None = None,
    out: Floats | None = None,
    isa: str | None = None,
    n_threads: int = 1,
) -> Floats:
    """Returns ``c * conv(b * x)`` of the rows of a pass behind ``past`` tokens.

    Shapes: bcx [T, 3C] float32; parents [P] int64, the last T of these rows, -1 for the last token
        before; weight [C, K]; kept [Q, C] float32, written: position t at row t modulo Q, node i of
        parents at position past + i; bias [C]; result [T, C] (``out`` if given).
    """
    expect("weight", weight, np.float32, (-1, -1))
    channels, size = weight.shape
    expect("bcx", bcx, np.float32, (-1, 3 * channels))
    expect("kept", kept, np.float32, (-1, channels))
    expect("parents", parents, np.int64, (-1,))
    rows, n_nodes = len(bcx), len(parents)
    expect_range("parents", parents, -1, np.arange(n_nodes))
    seen = min(past, size - 1)
    if past < 0 or not rows <= n_nodes <= len(kept) - seen:
        raise ValueError(
            f"kept: got {len(kept)} rows, expected {seen + n_nodes} for {n_nodes} nodes behind "
            f"{past} tokens, {rows} of them or more"
        )
    out = output(out, (rows, channels))
    args = ShortConvArgs(
        bcx.ctypes.data, parents.ctypes.data, rows, n_nodes - rows, past, channels, size,
        weight.ctypes.data,
        None if bias is None else pointer("bias", bias, np.float32, (channels,)),
        len(kept), kept.ctypes.data, out.ctypes.data,
    )  # fmt: skip
    run("short_conv", args, isa, n_threads)
    return out
