"""GGUF tensor types: block bytes to plain codes, equal after dequantisation to the last bit.

Types that no storage format of ours holds exactly become floats, and name a format to convert to.

Source: ggml-org/llama.cpp ``ggml/src/ggml-common.h`` (block layouts, MIT).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import CheckpointError
from edgedec.models.quant import FORMATS, PlainTensor, QuantFormat

Bytes = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.float16]
Decoder = Callable[[QuantFormat, Bytes], PlainTensor]


@dataclass(frozen=True)
class TensorType:
    """One GGUF tensor type. A row is a sequence of blocks.

    format: what rows are decoded to. n_weights, n_bytes: weights and bytes in one block.
    stand_in: format for values that only floats hold exactly.
    needs_library: Whether the package `gguf` decodes the rows, which an extra brings.
    """

    name: str
    format: QuantFormat
    n_weights: int
    n_bytes: int
    decode: Decoder
    stand_in: QuantFormat | None = None
    needs_library: bool = False

    def plain(self, rows: Bytes) -> PlainTensor:
        """Returns the codes of ``rows`` [N, bytes of a row]."""
        return self.decode(self.format, rows)


def _floats(dtype: type[np.generic]) -> Decoder:
    def decode(fmt: QuantFormat, rows: Bytes) -> PlainTensor:
        return PlainTensor(fmt, np.ascontiguousarray(rows).view(np.dtype(dtype).newbyteorder("<")))

    return decode


def _fields(rows: Bytes, *widths: int) -> tuple[Bytes, ...]:
    """Splits every block [N, n_blocks, sum(widths)] into byte fields of these widths."""
    n, n_bytes = rows.shape
    blocks = rows.reshape(n, n_bytes // sum(widths), sum(widths))
    stops = np.cumsum(widths)
    return tuple(blocks[:, :, stop - n : stop] for n, stop in zip(widths, stops, strict=True))


def _half(field: Bytes) -> Halves:
    """Returns one float16 per block [N, n_blocks]."""
    return np.ascontiguousarray(field).view("<f2")[:, :, 0]


def _nibbles(packed: Bytes) -> Bytes:
    """Returns low nibbles, then high nibbles, along the last axis."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=-1)


def _fifth_bits(field: Bytes) -> Bytes:
    """Returns the 32 bits of every block, each as 0 or 16."""
    return np.unpackbits(field, axis=-1, bitorder="little") << np.uint8(4)


def _codes(blocks: Bytes) -> Bytes:
    return blocks.reshape(len(blocks), math.prod(blocks.shape[1:]))


def _q4_0(fmt: QuantFormat, rows: Bytes) -> PlainTensor:
    scale, low = _fields(rows, 2, 16)
    return PlainTensor(fmt, _codes(_nibbles(low)), _half(scale))


def _q4_1(fmt: QuantFormat, rows: Bytes) -> PlainTensor:
    scale, minimum, low = _fields(rows, 2, 2, 16)
    return PlainTensor(fmt, _codes(_nibbles(low)), _half(scale), _half(minimum))


def _q5_0(fmt: QuantFormat, rows: Bytes) -> PlainTensor:
    scale, high, low = _fields(rows, 2, 4, 16)
    return PlainTensor(fmt, _codes(_nibbles(low) | _fifth_bits(high)), _half(scale))


def _q5_1(fmt: QuantFormat, rows: Bytes) -> PlainTensor:
    scale, minimum, high, low = _fields(rows, 2, 2, 4, 16)
    codes = _codes(_nibbles(low) | _fifth_bits(high))
    return PlainTensor(fmt, codes, _half(scale), _half(minimum))


def _q8_0(fmt: QuantFormat, rows: Bytes) -> PlainTensor:
    scale, signed = _fields(rows, 2, 32)
    return PlainTensor(fmt, _codes(signed ^ np.uint8(0x80)), _half(scale))


def _sub_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Returns 6-bit scales and minima [N, 8 * n_blocks] of 12 packed bytes per block.

    Bytes 0-3 hold scales 0-3 and, in their two top bits, those of scales 4-7; bytes 4-7 do the
    same for minima; bytes 8-11 hold the low nibbles of scales 4-7 and minima 4-7.
    """
    scales, minima, both = packed[:, :, :4], packed[:, :, 4:8], packed[:, :, 8:]
    scale = np.concatenate([scales & 0x3F, both & 0x0F | (scales >> 2) & 0x30], axis=-1)
    minimum = np.concatenate([minima & 0x3F, both >> 4 | (minima >> 2) & 0x30], axis=-1)
    return _codes(scale), _codes(minimum)


def _k_nibbles(packed: Bytes) -> Bytes:
    """Returns nibbles [N, n_blocks, 8, 32]: each 32 bytes hold two groups."""
    n, n_blocks, _ = packed.shape
    return _nibbles(packed.reshape(n, n_blocks, 4, 32)).reshape(n, n_blocks, 8, 32)


def _q4_k(fmt: QuantFormat, rows: Bytes) -> PlainTensor:
    scale, minimum, packed, low = _fields(rows, 2, 2, 12, 128)
    sub_scale, sub_minimum = _sub_scales(packed)
    codes = _codes(_k_nibbles(low))
    return PlainTensor(fmt, codes, _half(scale), _half(minimum), sub_scale, sub_minimum)


def _q5_k(fmt: QuantFormat, rows: Bytes) -> PlainTensor:
    scale, minimum, packed, high, low = _fields(rows, 2, 2, 12, 32, 128)
    sub_scale, sub_minimum = _sub_scales(packed)
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    fifth = (high[:, :, None, :] >> shifts & np.uint8(1)) << np.uint8(4)
    codes = _codes(_k_nibbles(low) | fifth)
    return PlainTensor(fmt, codes, _half(scale), _half(minimum), sub_scale, sub_minimum)


def _q6_k(fmt: QuantFormat, rows: Bytes) -> PlainTensor:
    low, high, sub_scale, scale = _fields(rows, 128, 64, 16, 2)
    n, n_blocks, _ = low.shape
    # Each 64 low bytes hold two runs of 64 weights; each 32 high bytes hold four runs of 32.
    nibbles = _nibbles(low.reshape(n, n_blocks, 2, 64)).reshape(n, n_blocks, 8, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    pairs = high.reshape(n, n_blocks, 2, 1, 32) >> shifts & np.uint8(3)
    top = pairs.reshape(n, n_blocks, 8, 32) << np.uint8(4)
    inner = np.ascontiguousarray(_codes(sub_scale)).view(np.int8)
    return PlainTensor(fmt, _codes(nibbles | top), _half(scale), sub_scale=inner)


_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
"""Values of the 4-bit codes of IQ4_NL and IQ4_XS."""

_FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Values of the 4-bit codes of MXFP4 (e2m1), doubled."""

_MX_BIAS = 128
"""What the exponents of MXFP4's scales exceed the powers of two by, of doubled values."""


def _q2_k(fmt: QuantFormat, rows: Bytes) -> PlainTensor:
    packed, low, outer, outer_minimum = _fields(rows, 16, 64, 2, 2)
    scale = _half(outer).astype(np.float32)[:, :, None] * (packed & 0x0F).astype(np.float32)
    minimum = _half(outer_minimum).astype(np.float32)[:, :, None] * (packed >> 4).astype(np.float32)
    codes = _bit_pairs(low).reshape(*packed.shape, 16).astype(np.float32)
    return PlainTensor(fmt, _joined(scale[..., None] * codes - minimum[..., None]))


def _q3_k(fmt: QuantFormat, rows: Bytes) -> PlainTensor:
    high, low, packed, scale = _fields(rows, 32, 64, 12, 2)
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    third = (high[:, :, None, :] >> shifts & np.uint8(1)) << np.uint8(2)
    # Codes count from -4, those of the six-bit format from -32.
    codes = _codes(_bit_pairs(low) | third) + np.uint8(28)
    return PlainTensor(fmt, codes, _half(scale), sub_scale=_signed_sub_scales(packed))


def _bit_pairs(packed: Bytes) -> Bytes:
    """Returns pairs of bits [N, n_blocks, 8, 32]: each 32 bytes hold four groups."""
    n, n_blocks, _ = packed.shape
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    pairs = packed.reshape(n, n_blocks, 2, 1, 32) >> shifts & np.uint8(3)
    return pairs.reshape(n, n_blocks, 8, 32)


def _signed_sub_scales(packed: Bytes) -> npt.NDArray[np.int8]:
    """Returns sub-scales [N, 16 * n_blocks], -32 to 31, of 12 packed bytes per block.

    Bytes 0-7 hold the low nibbles of sub-scales 0-7 and, in their upper halves, of 8-15; bytes
    8-11 hold the two top bits of sub-scales i, i + 4, i + 8 and i + 12.
    """
    low = _nibbles(packed[:, :, :8])
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = (packed[:, :, None, 8:] >> shifts & np.uint8(3)).reshape(low.shape)
    return _codes(low | high << np.uint8(4)).view(np.int8) - np.int8(32)


def _iq4_nl(fmt: QuantFormat, rows: Bytes) -> PlainTensor:
    scale, low = _fields(rows, 2, 16)
    return PlainTensor(fmt, _looked_up(_IQ4, _codes(_nibbles(low)), fmt), _half(scale))


def _iq4_xs(fmt: QuantFormat, rows: Bytes) -> PlainTensor:
    outer, high, low, packed = _fields(rows, 2, 2, 4, 128)
    n, n_blocks, _ = low.shape
    nibbles = np.stack([low & 0x0F, low >> 4], axis=-1).reshape(n, n_blocks, 8)
    top = np.ascontiguousarray(high).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    sub_scale = (nibbles | top << 4).astype(np.int16) - 32
    scale = _half(outer).astype(np.float32)[:, :, None] * sub_scale.astype(np.float32)
    codes = _nibbles(packed.reshape(n, n_blocks, 8, 16))
    return PlainTensor(fmt, _joined(scale[..., None] * _IQ4[codes].astype(np.float32)))


def _mxfp4(fmt: QuantFormat, rows: Bytes) -> PlainTensor:
    exponent, low = _fields(rows, 1, 16)
    return plain_mxfp4(fmt, _codes(_nibbles(low)), exponent[:, :, 0])


def plain_mxfp4(fmt: QuantFormat, codes: Bytes, exponents: Bytes) -> PlainTensor:
    """Returns 4-bit ``codes`` [N, K] with the exponents of their scales [N, K / 32].

    Raises:
        CheckpointError: A scale is too large for float16.
    """
    power = exponents.astype(np.int32) - _MX_BIAS
    if power.size and power.max() > _MAX_POWER:
        raise CheckpointError(
            f"an MXFP4 scale is 2^{power.max()}, expected at most 2^{_MAX_POWER}: the file is "
            f"damaged, fetch it again"
        )
    # Smaller scales than float16 has are of weights below 4e-7; they become zero.
    scale = np.ldexp(np.float32(1), power).astype(np.float16)
    return PlainTensor(fmt, _looked_up(_FP4, codes, fmt), scale)


_MAX_POWER = 15
"""Largest power of two of a float16."""


def _tq1_0(fmt: QuantFormat, rows: Bytes) -> PlainTensor:
    fives, fours, scale = _fields(rows, 48, 4, 2)
    parts = ((fives[:, :, :32], 5), (fives[:, :, 32:], 5), (fours, 4))
    trits = [_trits(packed, n_trits) for packed, n_trits in parts]
    return _few_bits(fmt, np.concatenate(trits, axis=-1), scale)


def _trits(packed: Bytes, n_trits: int) -> Bytes:
    """Returns base-3 digits, 0 to 2, of bytes that hold ``n_trits`` each as a fraction of 256."""
    powers = np.array([3**i for i in range(n_trits)], np.uint8)[:, None]
    # The product drops what exceeds a byte, which are the digits before.
    digits = (packed[:, :, None, :] * powers).astype(np.uint16) * 3 >> 8
    return digits.astype(np.uint8).reshape(*packed.shape[:2], -1)


def _tq2_0(fmt: QuantFormat, rows: Bytes) -> PlainTensor:
    packed, scale = _fields(rows, 64, 2)
    return _few_bits(fmt, _bit_pairs(packed), scale)


def _few_bits(fmt: QuantFormat, codes: Bytes, scale: Bytes) -> PlainTensor:
    """Returns ``codes`` that count from -1, with one scale for each block, in groups of 32."""
    flat = _codes(codes)
    n_groups = flat.shape[1] // 32 // scale.shape[1]
    return PlainTensor(fmt, flat, np.repeat(_half(scale), n_groups, axis=1))


def _q1_0(fmt: QuantFormat, rows: Bytes) -> PlainTensor:
    scale, packed = _fields(rows, 2, 16)
    signs = np.unpackbits(packed, axis=-1, bitorder="little") << np.uint8(1)
    return _few_bits(fmt, signs, scale)


def _q2_0(fmt: QuantFormat, rows: Bytes) -> PlainTensor:
    scale, packed = _fields(rows, 2, 16)
    pairs = packed[..., None] >> np.arange(0, 8, 2, dtype=np.uint8) & np.uint8(3)
    return _few_bits(fmt, pairs, scale)


def _nvfp4(fmt: QuantFormat, rows: Bytes) -> PlainTensor:
    scales, low = _fields(rows, 4, 32)
    exponent, mantissa = (scales >> 3 & 15).astype(np.int32), (scales & 7).astype(np.float32)
    # Values are doubled, so scales are halved.
    scale = np.ldexp(np.where(exponent > 0, mantissa + 8, mantissa), np.maximum(exponent, 1) - 11)
    scale[scales == _NO_E4M3] = 0
    codes = _nibbles(low.reshape(*low.shape[:2], 4, 8))
    values = scale.astype(np.float32)[..., None] * _FP4[codes].astype(np.float32)
    return PlainTensor(fmt, _joined(values))


_NO_E4M3 = 0x7F
"""NaN among scales of NVFP4, which llama.cpp reads as zero."""


def _by_library(name: str) -> Decoder:
    def decode(fmt: QuantFormat, rows: Bytes) -> PlainTensor:
        from gguf import GGMLQuantizationType, quants  # an extra; its tables are long

        values = quants.dequantize(np.ascontiguousarray(rows), GGMLQuantizationType[name])
        return PlainTensor(fmt, values)

    return decode


def _looked_up(table: npt.NDArray[np.int8], codes: Bytes, fmt: QuantFormat) -> Bytes:
    """Returns codes of ``fmt`` for the values that ``codes`` stand for in ``table``."""
    return (table.astype(np.int16) + fmt.zero_point).astype(np.uint8)[codes]


def _joined(blocks: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return blocks.reshape(len(blocks), math.prod(blocks.shape[1:]))


def _row(name: str, n_weights: int, n_bytes: int, decode: Decoder, kept_as: str = "") -> TensorType:
    return TensorType(name, FORMATS[kept_as or name.lower()], n_weights, n_bytes, decode)


def _converted(
    name: str, n_weights: int, n_bytes: int, decode: Decoder, stand_in: str
) -> TensorType:
    return TensorType(name, FORMATS["f32"], n_weights, n_bytes, decode, FORMATS[stand_in])


def _from_library(name: str, n_bytes: int) -> TensorType:
    # Five bits lose up to 0.065 of what random codes of these types hold; eight lose 0.005.
    formats = FORMATS["f32"], FORMATS["q5_0"]
    return TensorType(name, formats[0], 256, n_bytes, _by_library(name), formats[1], True)


TENSOR_TYPES: dict[int, TensorType] = {
    0: _row("F32", 1, 4, _floats(np.float32)),
    1: _row("F16", 1, 2, _floats(np.float16)),
    2: _row("Q4_0", 32, 18, _q4_0),
    3: _row("Q4_1", 32, 20, _q4_1),
    6: _row("Q5_0", 32, 22, _q5_0),
    7: _row("Q5_1", 32, 24, _q5_1),
    8: _row("Q8_0", 32, 34, _q8_0),
    10: _converted("Q2_K", 256, 84, _q2_k, "q4_1"),
    11: _row("Q3_K", 256, 110, _q3_k, kept_as="q6_k"),
    12: _row("Q4_K", 256, 144, _q4_k),
    13: _row("Q5_K", 256, 176, _q5_k),
    14: _row("Q6_K", 256, 210, _q6_k),
    16: _from_library("IQ2_XXS", 66),
    17: _from_library("IQ2_XS", 74),
    18: _from_library("IQ3_XXS", 98),
    19: _from_library("IQ1_S", 50),
    20: _row("IQ4_NL", 32, 18, _iq4_nl, kept_as="q8_0"),
    21: _from_library("IQ3_S", 110),
    22: _from_library("IQ2_S", 82),
    23: _converted("IQ4_XS", 256, 136, _iq4_xs, "q8_0"),
    29: _from_library("IQ1_M", 56),
    30: _row("BF16", 1, 2, _floats(np.uint16)),
    34: _row("TQ1_0", 256, 54, _tq1_0, kept_as="q2_0"),
    35: _row("TQ2_0", 256, 66, _tq2_0, kept_as="q2_0"),
    39: _row("MXFP4", 32, 17, _mxfp4, kept_as="q5_0"),
    40: _converted("NVFP4", 64, 36, _nvfp4, "q8_0"),
    41: _row("Q1_0", 128, 18, _q1_0, kept_as="q2_0"),
    42: _row("Q2_0", 64, 18, _q2_0),
}
"""Every tensor type that can be read, by its number in the file."""

UNREAD_TYPES: dict[int, str] = {
    9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
}  # fmt: skip
"""Names of types that exist but have no reader, for error messages."""
