"""The attention operator, checked, on NumPy arrays."""

from __future__ import annotations

import ctypes
from ctypes import c_bool, c_float, c_int, c_int64, c_void_p

import numpy as np
import numpy.typing as npt

from edgedec.kernels.checks import Floats, Integers, expect, expect_range, output, pointer
from edgedec.kernels.cpu import PANEL, run

KVBlocks = npt.NDArray[np.float16] | npt.NDArray[np.uint8]

_MAX_PAST = 2**31


class Scoring(ctypes.Structure):
    """``Scoring`` of src/kernels.h: how a row of attention weighs what it sees.

    scale: of products of query and keys, 0 for 1 / sqrt(head size). softcap: bound that these bend
    towards, 0 for none. window: positions that a row sees, its own the last, 0 for all.
    """

    _fields_ = (("scale", c_float), ("softcap", c_float), ("window", c_int64))


class KvRun(ctypes.Structure):
    """``KvRun`` of src/kernels.h: panels of a KV cache that follow one another."""

    _fields_ = (("first", c_int64), ("panels", c_int64))


class AttentionArgs(ctypes.Structure):
    """``AttentionArgs`` of src/kernels.h."""

    _fields_ = (
        ("qkv", c_void_p),
        ("positions", c_void_p),
        ("parents", c_void_p),
        ("rows", c_int64),
        ("known", c_int64),
        ("past", c_int64),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("n_heads", c_int),
        ("n_kv_heads", c_int),
        ("head_size", c_int),
        ("kv_format", c_int),
        ("scoring", Scoring),
        ("runs", ctypes.POINTER(KvRun)),
        ("capacity", c_int64),
        ("head_rows", c_int64),
        ("k_cache", c_void_p),
        ("v_cache", c_void_p),
        ("out", c_void_p),
        ("n_sequences", c_int64),
        ("sinks", c_void_p),
        ("shares_kv", c_bool),
        ("sees_all", c_bool),
        ("source", c_int64),
        ("sees_source", c_bool),
        ("distance_bias", c_void_p),
        ("n_distances", c_int64),
        ("key_offsets", c_void_p),
        ("n_positions", c_int64),
    )


def attention(
    qkv: Floats,
    positions: Integers,
    parents: Integers,
    past: int,
    rope: tuple[Floats, Floats],
    kv_cache: tuple[KVBlocks, KVBlocks],
    *,
    scoring: Scoring | None = None,
    sinks: Floats | None = None,
    shares_kv: bool = False,
    sees_all: bool = False,
    source: int = 0,
    sees_source: bool = False,
    distance_bias: Floats | None = None,
    key_offsets: Floats | None = None,
    kv_format: int | None = None,
    out: Floats | None = None,
    isa: str | None = None,
    n_threads: int = 1,
) -> Floats:
    """Returns the attended heads of a pass, after writing its keys and values to the KV cache.

    With ``shares_kv`` they are there already, and ``qkv`` has queries alone [T, H * d].

    Row i attends to the first ``past`` rows of the KV cache, to itself and to its ancestors, as
    ``scoring`` says: by default to all, by products over the square root of the head size. A score
    of ``sinks`` counts in the softmax of its head as that of a position with values of 0. The
    first P - T of the ``parents`` are those of nodes whose rows earlier passes left at past.. With
    ``sees_all`` a row attends to all nodes, whatever their parents; a window goes both ways then.
    Of the first ``source`` rows of the KV cache nothing is seen, or with ``sees_source`` nothing
    else. Row i of ``distance_bias`` is added to scores of keys i positions behind, the last one to
    all that are farther. ``key_offsets`` are taken from keys before their rotation; scores get back
    what that takes from them. ``kv_format`` is a number of `KVPanels`, by default that of float16
    or int8.

    Shapes: qkv [T, (H + 2 Hkv) * d]; positions [T], parents [P] int64; rope: cosines and sines
        [n_positions, d / 2]; kv_cache of one layer: keys [Hkv, C / 16, d, 16] and values
        [Hkv, C, d] float16, or each [Hkv, C / 16, one of `kv_block_nbytes`] uint8;
        rows past.., modulo C, are overwritten: with a window C needs to be no more than the rows
        that the first row sees before itself, and P; sinks [H], distance_bias [n, H],
        key_offsets [Hkv, d] float32.
        Result [T, H * d] float32.
    """
    keys, values = kv_cache
    expect("cosines", rope[0], np.float32, (-1, -1))
    d = 2 * rope[0].shape[1]
    kv_format = int(keys.dtype == np.uint8) if kv_format is None else kv_format
    n_kv_heads, capacity = _check_kv_cache(keys, values, d, kv_format)
    expect("qkv", qkv, np.float32, (-1, -1))
    rows, width = qkv.shape
    n_heads = width // d - (0 if shares_kv else 2 * n_kv_heads) if d else 0
    if n_heads < 1 or n_heads % n_kv_heads or width % d or capacity % PANEL:
        raise ValueError(
            f"qkv {list(qkv.shape)} and values {list(values.shape)} do not fit together: expected"
            f" [T, (H + 2 Hkv) * d] and a KV cache of Hkv heads, H a multiple of Hkv, d {d}"
        )
    nodes, scoring = len(parents), scoring or Scoring()
    if nodes < rows:
        raise ValueError(f"parents are {nodes}, expected one for each of the {rows} rows, or more")
    _check_room(past, nodes, capacity, 0 if sees_all else scoring.window)
    _check_source(source, past, sees_source, shares_kv)
    if distance_bias is not None:
        expect("distance_bias", distance_bias, np.float32, (-1, n_heads))
        if not len(distance_bias):
            raise ValueError("distance_bias has no rows, expected one or more")
    expect("positions", positions, np.int64, (rows,))
    expect_range("positions", positions, 0, rope[0].shape[0])
    expect("parents", parents, np.int64, (nodes,))
    expect_range("parents", parents, -1, np.arange(nodes))
    out = output(out, (rows, n_heads * d))
    args = AttentionArgs(
        qkv.ctypes.data, positions.ctypes.data, parents.ctypes.data, rows, nodes - rows, past,
        rope[0].ctypes.data, pointer("sines", rope[1], np.float32, rope[0].shape),
        n_heads, n_kv_heads, d, kv_format,
        scoring, ctypes.pointer(KvRun(0, capacity // PANEL)), capacity, capacity,
        keys.ctypes.data, values.ctypes.data, out.ctypes.data, 1,
        None if sinks is None else pointer("sinks", sinks, np.float32, (n_heads,)), shares_kv,
        sees_all,
        source, sees_source, None if distance_bias is None else distance_bias.ctypes.data,
        0 if distance_bias is None else len(distance_bias),
        None if key_offsets is None
        else pointer("key_offsets", key_offsets, np.float32, (n_kv_heads, d)),
        len(rope[0]),
    )  # fmt: skip
    run("attention", args, isa, n_threads)
    return out


def kv_block_nbytes(head_size: int, kv_format: int = 1) -> tuple[int, int]:
    """Returns the sizes of 16 keys and of 16 values of one head in a KV cache of bytes.

    16 float16 scales, one per token, then codes. Those of int8, format 1: [head_size, 16] of keys,
    [16, head_size in whole vectors of 16] of values. Those of k5v4, format 2: 16 times half of the
    head size and a byte for eight channels, of keys; half as many bytes as int8's, of whole runs of
    32, of values.
    """
    if kv_format == 1:
        row = -(-head_size // 16) * 16
        return PANEL * (2 + row), PANEL * (2 + row)
    return PANEL * (2 + head_size // 2 + -(-head_size // 8)), PANEL * (2 + -(-head_size // 32) * 16)


def _check_kv_cache(keys: KVBlocks, values: KVBlocks, d: int, kv_format: int) -> tuple[int, int]:
    """Returns the heads and rows of a layer's KV cache with ``d`` channels per head."""
    if not (keys.flags.writeable and values.flags.writeable):
        raise ValueError("the KV cache is read-only, expected arrays that may be overwritten")
    if kv_format:
        of_keys, of_values = kv_block_nbytes(d, kv_format)
        expect("keys", keys, np.uint8, (-1, -1, of_keys))
        expect("values", values, np.uint8, (*keys.shape[:2], of_values))
        return keys.shape[0], keys.shape[1] * PANEL
    expect("values", values, np.float16, (-1, -1, d))
    n_kv_heads, capacity, _ = values.shape
    expect("keys", keys, np.float16, (n_kv_heads, capacity // PANEL, d, PANEL))
    return n_kv_heads, capacity


def _check_source(source: int, past: int, sees_source: bool, shares_kv: bool) -> None:
    if not 0 <= source <= past or (sees_source and not shares_kv):
        raise ValueError(
            f"source is {source}, expected 0 to past {past}; sees_source needs shares_kv"
        )


def _check_room(past: int, nodes: int, capacity: int, window: int) -> None:
    """Checks that a pass of so many nodes fits the KV cache, beside the rows that it sees."""
    if past > _MAX_PAST:
        raise ValueError(f"past is {past}, expected 0 to {_MAX_PAST}")
    seen = min(past, window - 1) if window > 0 else past
    if past < 0 or seen > capacity - nodes:
        raise ValueError(f"past {past} + {nodes} rows do not fit a KV cache of {capacity} rows")
