"""Statistics of logits rows."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p

import numpy as np

from edgedec.kernels.checks import Floats, Integers, expect
from edgedec.kernels.cpu import run

N_TOP = 8
"""Largest logits that `row_stats` lists."""


class RowStatsArgs(ctypes.Structure):
    """``RowStatsArgs`` of src/kernels.h."""

    _fields_ = (
        ("logits", c_void_p),
        ("rows", c_int64),
        ("n_ids", c_int64),
        ("argmax", c_void_p),
        ("log_sum_exp", c_void_p),
        ("entropy", c_void_p),
        ("top_ids", c_void_p),
        ("top_logits", c_void_p),
    )


def row_stats(
    logits: Floats, *, isa: str | None = None, n_threads: int = 1
) -> tuple[Integers, Floats, Floats, Integers, Floats]:
    """Returns argmax, log-sum-exp, entropy, and ids and logits of the 8 largest, of each row.

    NaN counts as the largest logit; the sums of a row whose largest is not finite are NaN.

    Shapes: logits [rows, V]; argmax [rows] int64, log-sum-exp and entropy (nats) [rows] float32,
        ids [rows, 8] int64 and logits [rows, 8] float32, -1 and -inf past the V-th.
    """
    expect("logits", logits, np.float32, (-1, -1))
    rows, n_ids = logits.shape
    if n_ids < 1:
        raise ValueError(f"logits have shape {list(logits.shape)}, expected at least one id")
    argmax, log_sum_exp = np.empty(rows, np.int64), np.empty(rows, np.float32)
    entropy, top_ids = np.empty(rows, np.float32), np.empty((rows, N_TOP), np.int64)
    top_logits = np.empty((rows, N_TOP), np.float32)
    results = (argmax, log_sum_exp, entropy, top_ids, top_logits)
    pointers = (array.ctypes.data for array in results)
    args = RowStatsArgs(logits.ctypes.data, rows, n_ids, *pointers)
    run("row_stats", args, isa, n_threads)
    return results
