"""Instruction sets, packed matrices and the attention operator, checked, on NumPy arrays."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from edgedec.kernels import library
from edgedec.kernels.checks import (
    Array,
    Bytes,
    Floats,
    Integers,
    KVBlocks,
    expect,
    expect_range,
    output,
    pointer,
)

PANEL = 16
"""Output channels side by side in a packed matrix; packing may start at any multiple of it."""

_SUPER = 256
_MAX_N = 2**31
_MAX_K = 2**24
_MAX_PAST = 2**31
_ALIGNMENT = 4  # bytes; packed matrices hold 16-bit scales and 32-bit floats


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
        expect("packed matrix", self.data, np.uint8, (want,))
        if rest := self.data.ctypes.data % _ALIGNMENT:
            raise ValueError(f"packed matrix: got address % {_ALIGNMENT} = {rest}, expected 0")
        if self.bias is not None:
            expect("bias", self.bias, np.float32, (self.n,))


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
    args = library.PlainArgs(fmt, n, k, pointer("codes", codes, plain.codes, (n, k)))
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
            setattr(args, name, pointer(name, fields[-1], dtype, (n, -(-k // group))))
        elif field is not None and field.size:
            raise ValueError(f"format {fmt} has no {name}")
    library.open_library().edgedec_pack(ctypes.byref(args), out.ctypes.data)
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
    nodes, scoring = len(parents), scoring or library.Scoring()
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
    args = library.AttentionArgs(
        qkv.ctypes.data, positions.ctypes.data, parents.ctypes.data, rows, nodes - rows, past,
        rope[0].ctypes.data, pointer("sines", rope[1], np.float32, rope[0].shape),
        n_heads, n_kv_heads, d, kv_format,
        scoring, ctypes.pointer(library.KvRun(0, capacity // PANEL)), capacity, capacity,
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


def _plain_format(fmt: int) -> _Plain:
    if not 0 <= fmt < len(_FORMATS):
        raise ValueError(f"weight format is {fmt}, expected 0 to {len(_FORMATS) - 1}")
    return _FORMATS[fmt]


def matrix_args(matrix: PackedMatrix) -> library.MatrixArgs:
    """Returns the arguments that stand for ``matrix``."""
    bias = None if matrix.bias is None else matrix.bias.ctypes.data
    return library.MatrixArgs(matrix.data.ctypes.data, bias, matrix.format, matrix.n)


def run(name: str, args: ctypes.Structure, isa: str | None, n_threads: int) -> None:
    """Runs an operator on the instruction set ``isa``, by default the one in use.

    Raises:
        ValueError: There are no threads.
        MemoryError: The operator found no working memory.
        RuntimeError: The instruction set cannot be used here.
    """
    if n_threads < 1:
        raise ValueError(f"n_threads is {n_threads}, expected 1 or more")
    isa_name = active_isa() if isa is None else isa
    result = library.operator(name, type(args))(isa_name.encode(), ctypes.byref(args), n_threads)
    if result < 0:
        raise MemoryError(f"{name} found no working memory: pass fewer rows")
    if result == 0:
        raise RuntimeError(f"cannot use {isa_name!r}; usable: {', '.join(available_isas())}")
