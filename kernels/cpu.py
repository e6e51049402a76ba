"""Shape-checked calls of the kernels on NumPy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgedec.kernels import library

PANEL = 16
"""Output channels side by side in a packed matrix; packing may start at any multiple of it."""

N_TOP = 8
"""Largest logits that `row_stats` lists."""

_SUPER = 256
_MAX_N = 2**31
_MAX_K = 2**24
_ALIGNMENT = 4  # bytes; packed matrices hold 16-bit scales and 32-bit floats

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
KVBlocks = npt.NDArray[np.float16] | npt.NDArray[np.uint8]
Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]


class _Plain(NamedTuple):
    """Fields of a plain matrix in one format: element type and consecutive k per entry."""

    bits: int
    codes: type[np.generic]
    scale_group: int = 0
    minimum_group: int = 0
    sub_scale: type[np.generic] | None = None
    sub_scale_group: int = 0
    sub_minimum_group: int = 0

    @property
    def k_multiple(self) -> int:
        return self.scale_group if self.scale_group == _SUPER else 1


# In the order of the format table of edgedec.models.quant.
_FORMATS = (
    _Plain(32, np.float32),
    _Plain(16, np.float16),
    _Plain(16, np.uint16),
    _Plain(4, np.uint8, 32),
    _Plain(4, np.uint8, 32, 32),
    _Plain(5, np.uint8, 32),
    _Plain(5, np.uint8, 32, 32),
    _Plain(8, np.uint8, 32),
    _Plain(8, np.uint8, 32, 32),
    _Plain(4, np.uint8, _SUPER, _SUPER, np.uint8, 32, 32),
    _Plain(5, np.uint8, _SUPER, _SUPER, np.uint8, 32, 32),
    _Plain(6, np.uint8, _SUPER, 0, np.int8, 16),
)


@dataclass(frozen=True, eq=False)
class PackedMatrix:
    """A matrix [n, k] as `pack` wrote it. ``bias`` [n] is added by `linear` alone."""

    data: Bytes
    format: int
    n: int
    k: int
    bias: Floats | None = None

    def __post_init__(self) -> None:
        want = packed_nbytes(self.format, self.n, self.k)
        _expect("packed matrix", self.data, np.uint8, (want,))
        if rest := self.data.ctypes.data % _ALIGNMENT:
            raise ValueError(f"packed matrix: got address % {_ALIGNMENT} = {rest}, expected 0")
        if self.bias is not None:
            _expect("bias", self.bias, np.float32, (self.n,))


def available_isas() -> tuple[str, ...]:
    """Returns the instruction sets usable here, best first."""
    names: bytes = library.open_library().edgedec_available_isas()
    return tuple(names.decode().split(","))


def active_isa() -> str:
    """Returns the instruction set in use; RuntimeError if ``EDGEDEC_ISA`` names an unusable one."""
    why = ctypes.c_char_p()
    name: bytes | None = library.open_library().edgedec_active_isa(ctypes.byref(why))
    if name is None:
        reason = (why.value or b"no usable instruction set").decode()
        raise RuntimeError(f"{reason}; usable: {', '.join(available_isas())}")
    return name.decode()


def packed_nbytes(fmt: int, n: int, k: int) -> int:
    """Returns the size of a packed matrix [n, k]; ValueError if there is no such matrix."""
    plain = _plain_format(fmt)
    if not (0 < n <= _MAX_N and 0 < k <= _MAX_K):
        raise ValueError(f"matrix is [{n}, {k}], expected sizes of 1 to 2**31 and 1 to 2**24")
    if k % plain.k_multiple:
        raise ValueError(f"k is {k}, format {fmt} expects a multiple of {plain.k_multiple}")
    return int(library.open_library().edgedec_packed_nbytes(fmt, n, k))


def pack(
    fmt: int,
    codes: Array,
    scale: Array | None = None,
    minimum: Array | None = None,
    sub_scale: Array | None = None,
    sub_minimum: Array | None = None,
) -> Bytes:
    """Returns a plain matrix in the layout the kernels read.

    Rows are filled up to a multiple of `PANEL`, so chunks of rows that start at such multiples,
    packed one by one, join to the packing of the whole.

    Shapes: the fields of ``edgedec.models.quant.PlainTensor``; fields the format does not use
        are None or empty. Result uint8 [packed_nbytes].
    Raises: ValueError for shapes, element types, or codes that exceed the format's bits.
    """
    plain = _plain_format(fmt)
    if codes.ndim != 2:
        raise ValueError(f"codes have shape {list(codes.shape)}, expected [n, k]")
    n, k = codes.shape
    out: Bytes = np.empty(packed_nbytes(fmt, n, k), np.uint8)
    if plain.scale_group and (largest := int(codes.max())) >> plain.bits:
        raise ValueError(f"codes reach {largest}, expected below {1 << plain.bits}")
    codes = np.require(codes, requirements=("C", "A"))
    args = library.PlainArgs(fmt, n, k, _pointer("codes", codes, plain.codes, (n, k)))
    fields = []  # alive until the call
    for name, field, dtype, group in (
        ("scale", scale, np.float16, plain.scale_group),
        ("minimum", minimum, np.float16, plain.minimum_group),
        ("sub_scale", sub_scale, plain.sub_scale, plain.sub_scale_group),
        ("sub_minimum", sub_minimum, np.uint8, plain.sub_minimum_group),
    ):
        if group and dtype is not None:
            if field is None:
                raise ValueError(f"format {fmt} expects {name}")
            fields.append(np.require(field, requirements=("C", "A")))
            setattr(args, name, _pointer(name, fields[-1], dtype, (n, -(-k // group))))
        elif field is not None and field.size:
            raise ValueError(f"format {fmt} has no {name}")
    library.open_library().edgedec_pack(ctypes.byref(args), out.ctypes.data)
    return out


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
    _expect_range("ids", ids, 0, table.n)
    out = _output(out, (rows, table.k))
    args = library.EmbedArgs(
        _pointer("ids", ids, np.int64, (rows,)), rows, table.k, _matrix(table), out.ctypes.data
    )
    _run("embed", args, isa, n_threads)
    return out


def unpack_rows(table: PackedMatrix, start: int, stop: int) -> Floats:
    """Returns rows [start, stop) of a packed matrix as floats [stop - start, k]."""
    return embed(np.arange(start, stop, dtype=np.int64), table)


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
    _expect("x", x, np.float32, (-1, -1))
    rows, k = x.shape
    n_out = _check_matrices(matrices, k, gate)
    if gate and residual is not None:
        raise ValueError("gate expects no residual")
    out = _output(out, (rows, n_out))
    args = library.LinearArgs(x.ctypes.data, rows, k, epsilon=epsilon, gate=gate)
    if norm_weight is not None:
        args.norm_weight = _pointer("norm_weight", norm_weight, np.float32, (k,))
    if residual is not None:
        args.residual = _pointer("residual", residual, np.float32, (rows, n_out))
    args.n_matrices = len(matrices)
    for i, matrix in enumerate(matrices):
        args.matrices[i] = _matrix(matrix)
    args.out = out.ctypes.data
    _run("linear", args, isa, n_threads)
    return out


def attention(
    qkv: Floats,
    positions: Integers,
    parents: Integers,
    past: int,
    rope: tuple[Floats, Floats],
    kv_cache: tuple[KVBlocks, KVBlocks],
    *,
    scoring: library.Scoring | None = None,
    out: Floats | None = None,
    isa: str | None = None,
    n_threads: int = 1,
) -> Floats:
    """Returns the attended heads of a pass, after writing its keys and values to the KV cache.

    Row i attends to the first ``past`` rows of the KV cache, to itself and to its ancestors, as
    ``scoring`` says: by default to all, by products over the square root of the head size. The
    first P - T of the ``parents`` are those of nodes whose rows earlier passes left at past..

    Shapes: qkv [T, (H + 2 Hkv) * d]; positions [T], parents [P] int64; rope: cosines and sines
        [n_positions, d / 2]; kv_cache of one layer: keys [Hkv, C / 16, d, 16] and values
        [Hkv, C, d] float16, or both [Hkv, C / 16, `kv_block_nbytes`] uint8, which holds int8;
        rows past.. are overwritten. Result [T, H * d] float32.
    """
    keys, values = kv_cache
    _expect("cosines", rope[0], np.float32, (-1, -1))
    d = 2 * rope[0].shape[1]
    n_kv_heads, capacity = _check_kv_cache(keys, values, d)
    _expect("qkv", qkv, np.float32, (-1, -1))
    rows, width = qkv.shape
    n_heads = width // d - 2 * n_kv_heads if d else 0
    if n_heads < 1 or n_heads % n_kv_heads or width % d or capacity % PANEL:
        raise ValueError(
            f"qkv {list(qkv.shape)} and values {list(values.shape)} do not fit together: expected"
            f" [T, (H + 2 Hkv) * d] and a KV cache of Hkv heads, H a multiple of Hkv, d {d}"
        )
    nodes = len(parents)
    if nodes < rows:
        raise ValueError(f"parents are {nodes}, expected one for each of the {rows} rows, or more")
    if not 0 <= past <= capacity - nodes:
        raise ValueError(f"past {past} + {nodes} rows do not fit a KV cache of {capacity} rows")
    _expect("positions", positions, np.int64, (rows,))
    _expect_range("positions", positions, 0, rope[0].shape[0])
    _expect("parents", parents, np.int64, (nodes,))
    _expect_range("parents", parents, -1, np.arange(nodes))
    out = _output(out, (rows, n_heads * d))
    if not (keys.flags.writeable and values.flags.writeable):
        raise ValueError("the KV cache is read-only, expected arrays that may be overwritten")
    args = library.AttentionArgs(
        qkv.ctypes.data, positions.ctypes.data, parents.ctypes.data, rows, nodes - rows, past,
        rope[0].ctypes.data, _pointer("sines", rope[1], np.float32, rope[0].shape),
        n_heads, n_kv_heads, d, int(keys.dtype == np.uint8),
        scoring or library.Scoring(), capacity,
        keys.ctypes.data, values.ctypes.data, out.ctypes.data,
    )  # fmt: skip
    _run("attention", args, isa, n_threads)
    return out


def row_stats(
    logits: Floats, *, isa: str | None = None, n_threads: int = 1
) -> tuple[Integers, Floats, Floats, Integers, Floats]:
    """Returns argmax, log-sum-exp, entropy, and ids and logits of the 8 largest, of each row.

    NaN counts as the largest logit; the sums of a row whose largest is not finite are NaN.

    Shapes: logits [rows, V]; argmax [rows] int64, log-sum-exp and entropy (nats) [rows] float32,
        ids [rows, 8] int64 and logits [rows, 8] float32, -1 and -inf past the V-th.
    """
    _expect("logits", logits, np.float32, (-1, -1))
    rows, n_ids = logits.shape
    if n_ids < 1:
        raise ValueError(f"logits have shape {list(logits.shape)}, expected at least one id")
    argmax, log_sum_exp = np.empty(rows, np.int64), np.empty(rows, np.float32)
    entropy, top_ids = np.empty(rows, np.float32), np.empty((rows, N_TOP), np.int64)
    top_logits = np.empty((rows, N_TOP), np.float32)
    results = (argmax, log_sum_exp, entropy, top_ids, top_logits)
    pointers = (array.ctypes.data for array in results)
    args = library.RowStatsArgs(logits.ctypes.data, rows, n_ids, *pointers)
    _run("row_stats", args, isa, n_threads)
    return results


def kv_block_nbytes(head_size: int) -> int:
    """Returns the size of 16 keys, or 16 values, of one head in an int8 KV cache.

    16 float16 scales, one per token, then codes: [head_size, 16] of keys, [16, head_size in whole
    vectors of 16] of values.
    """
    return 2 * PANEL + PANEL * (-(-head_size // 16) * 16)


def _check_kv_cache(keys: KVBlocks, values: KVBlocks, d: int) -> tuple[int, int]:
    """Returns the heads and rows of a layer's KV cache with ``d`` channels per head."""
    if keys.dtype == np.uint8:
        _expect("keys", keys, np.uint8, (-1, -1, kv_block_nbytes(d)))
        _expect("values", values, np.uint8, keys.shape)
        return keys.shape[0], keys.shape[1] * PANEL
    _expect("values", values, np.float16, (-1, -1, d))
    n_kv_heads, capacity, _ = values.shape
    _expect("keys", keys, np.float16, (n_kv_heads, capacity // PANEL, d, PANEL))
    return n_kv_heads, capacity


def _plain_format(fmt: int) -> _Plain:
    if not 0 <= fmt < len(_FORMATS):
        raise ValueError(f"weight format is {fmt}, expected 0 to {len(_FORMATS) - 1}")
    return _FORMATS[fmt]


def _expect(name: str, array: Array, dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    """Raises unless the array is contiguous and as stated; -1 stands for any size."""
    fits = len(shape) == array.ndim and all(
        want in (-1, got) for want, got in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype != dtype:
        sizes = ", ".join("any" if size < 0 else str(size) for size in shape)
        raise ValueError(
            f"{name}: got {array.dtype} {list(array.shape)}, expected {dtype.__name__} [{sizes}]"
        )
    if not array.flags.c_contiguous:
        raise ValueError(f"{name}: got a strided view, expected a contiguous array")
    if not array.flags.aligned:
        raise ValueError(f"{name}: got elements at odd addresses, expected an aligned array")


def _expect_range(name: str, values: Integers, low: int, high: int | Integers) -> None:
    if values.size and not bool(((values >= low) & (values < high)).all()):
        raise ValueError(f"{name}: got {values.min()} to {values.max()}, expected {low} and up,"
                         f" below {high if isinstance(high, int) else 'the own row'}")  # fmt: skip


def _pointer(name: str, array: Array, dtype: type[np.generic], shape: tuple[int, ...]) -> int:
    _expect(name, array, dtype, shape)
    return array.ctypes.data


def _output(out: Floats | None, shape: tuple[int, int]) -> Floats:
    if out is None:
        return np.empty(shape, np.float32)
    _expect("out", out, np.float32, shape)
    return out


def _matrix(matrix: PackedMatrix) -> library.MatrixArgs:
    bias = None if matrix.bias is None else matrix.bias.ctypes.data
    return library.MatrixArgs(matrix.data.ctypes.data, bias, matrix.format, matrix.n)


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


def _run(name: str, args: ctypes.Structure, isa: str | None, n_threads: int) -> None:
    if n_threads < 1:
        raise ValueError(f"n_threads is {n_threads}, expected 1 or more")
    wanted = active_isa() if isa is None else isa
    function = getattr(library.open_library(), f"edgedec_{name}")
    result = function(wanted.encode(), ctypes.byref(args), n_threads)
    if result < 0:
        raise MemoryError(f"{name} found no working memory: pass fewer rows")
    if result == 0:
        raise RuntimeError(f"cannot use {wanted!r}; usable: {', '.join(available_isas())}")
