"""Rows of a packed table."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p

import numpy as np

from edgedec.kernels.checks import Floats, Integers, expect_range, output, pointer
from edgedec.kernels.cpu import PackedMatrix, matrix_args, run
from edgedec.kernels.library import MatrixArgs


class EmbedArgs(ctypes.Structure):
    """``EmbedArgs`` of src/kernels.h."""

    _fields_ = (
        ("ids", c_void_p),
        ("rows", c_int64),
        ("k", c_int64),
        ("table", MatrixArgs),
        ("out", c_void_p),
    )


def embed(
    ids: Integers,
    table: PackedMatrix,
    *,
    out: Floats | None = None,
    isa: str | None = None,
    n_threads: int = 1,
) -> Floats:
    """Returns rows ``ids`` of the table as floats.

    Shapes: ids [rows] int64, result [rows, k] float32 (``out`` if given).
    """
    if ids.ndim != 1:
        raise ValueError(f"ids have shape {list(ids.shape)}, expected [rows]")
    rows = ids.shape[0]
    expect_range("ids", ids, 0, table.n)
    out = output(out, (rows, table.k))
    args = EmbedArgs(
        pointer("ids", ids, np.int64, (rows,)), rows, table.k, matrix_args(table), out.ctypes.data
    )
    run("embed", args, isa, n_threads)
    return out


def unpack_rows(table: PackedMatrix, start: int, stop: int) -> Floats:
    """Returns rows [start, stop) of a packed matrix as floats [stop - start, k]."""
    return embed(np.arange(start, stop, dtype=np.int64), table)
