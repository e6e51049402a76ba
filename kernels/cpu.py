"""Instruction sets and packed matrices, checked, on NumPy arrays."""

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
    expect,
    pointer,
)

PANEL = 16
"""Output channels side by side in a packed matrix; packing may start at any multiple of it."""

_SUPER = 256
_MAX_N = 2**31
_MAX_K = 2**24
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
    _Plain(3, np.uint8, 32),
    _Plain(2, np.uint8, 32),
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
