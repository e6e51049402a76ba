"""Keys and values in fewer bits, for session files: in even steps, along axes of their own.

The heads of a layer that make up 128 channels go together. Without their mean, rows are written in
axes that do not vary together (a Karhunen-Loève transform), and rounded to whole steps. Most axes
vary by a few steps only. Their codes are packed, several in a byte where they fit, and `zlib`
gives each axis Huffman codes of its own. Rows that are far out, as the first tokens are, stay.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import SessionError
from edgedec.runtime.sequences.state import Layout

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

KEYS, VALUES = "keys", "values"
ROUNDED = KEYS, VALUES
"""Names of the arrays that are rounded, [n_layers, n_kv_heads, n_tokens, head_size]."""

_FLOATS = ("<f2", "<f4")
_KEY_STEP, _VALUE_STEP = 0.3, 0.6
"""Of what numbers deviate from their means: those of keys in the median layer, as scores add keys
of all layers alike to the softmax; those of values in their own layer."""

_N_CHANNELS = 128
_N_FIRST = 4
"""Tokens that stay as they are, as their keys and values are larger than any others."""

_MAX_CODE = 127  # of a code
_PIECE = 1 << 14
_FEWEST = 4  # tokens per channel, below which axes take more than they save


def can_round(layout: Layout) -> bool:
    """Says whether rows of this layout have keys and values that can be rounded."""
    return all(name in layout and layout[name][0] in _FLOATS for name in ROUNDED)


def check_can_round(layout: Layout) -> None:
    """Raises a SessionError unless rows of this layout can be rounded."""
    if not can_round(layout):
        numbers = ", ".join(f"{name} {dtype}" for name, (dtype, _) in layout.items())
        raise SessionError(
            f"this KV cache cannot be rounded ({numbers}), only keys and values of float16 or "
            "float32 can: save the session as it is"
        )


def rounded(rows: Mapping[str, Array], start: int, stop: int) -> dict[str, bytes]:
    """Returns tokens ``start`` to ``stop`` of the arrays in `ROUNDED`, for `restored`.

    Nothing where that is no less than half of what they take.
    """
    n, chosen = stop - start, {name: rows[name][:, :, start:stop] for name in ROUNDED}
    if any(n < _FEWEST * _group(part) * part.shape[3] for part in chosen.values()):
        return {}
    with np.errstate(all="ignore"):  # what is no number stays as it is
        packed = _all_packed(chosen)
    if sum(map(len, packed.values())) > sum(part.nbytes for part in chosen.values()) / 2:
        return {}
    return packed


def restored(packed: bytes, rows: Array) -> None:
    """Fills ``rows`` with what `rounded` made of an array of this shape and type.

    Raises:
        ValueError: ``packed`` is no such thing.
    """
    source = _Source(packed)
    for layer in rows:
        for heads in _groups(layer):
            _restore(source, heads)
    source.check_end()


def _all_packed(chosen: Mapping[str, Array]) -> dict[str, bytes]:
    spreads = {name: [_spread(layer) for layer in part] for name, part in chosen.items()}
    steps = {
        KEYS: [_KEY_STEP * float(np.median(spreads[KEYS]))] * len(spreads[KEYS]),
        VALUES: [_VALUE_STEP * spread for spread in spreads[VALUES]],
    }
    return {name: _packed(part, steps[name]) for name, part in chosen.items()}


def _packed(part: Array, steps: list[float]) -> bytes:
    coder = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
    pieces = []
    for layer, step in zip(part, steps, strict=True):
        for heads in _groups(layer):
            for piece in _pieces(heads, step):
                pieces += [coder.compress(piece), coder.flush(zlib.Z_BLOCK)]
    return b"".join([*pieces, coder.flush()])


def _pieces(heads: Array, step: float) -> Iterator[bytes]:
    """Yields what is to be known of ``heads`` [H, n, d], each with statistics of its own."""
    x = _together(heads)
    mean = x[_N_FIRST:].mean(axis=0)
    scales, basis = _axes(x[_N_FIRST:] - mean)
    # The inverse of what is kept, so that rounded axes cost nothing.
    inverse = np.linalg.inv((basis * scales[:, None]).astype(np.float64)).astype(np.float32)
    codes = np.rint((x - mean) @ (inverse / np.float32(step or 1)))
    is_far = ~(np.abs(codes).max(axis=1) <= _MAX_CODE)  # those that are no number, too
    is_far[:_N_FIRST] = True
    near = codes[~is_far].astype(np.int16).T
    low, high = (of(near, axis=1, initial=0).astype(np.int8) for of in (np.min, np.max))
    is_used = low < high  # both are of 0, too
    far = heads.swapaxes(0, 1)[is_far]
    yield np.packbits(is_far).tobytes() + np.packbits(is_used).tobytes()
    yield mean.tobytes() + (scales * np.float32(step))[is_used].tobytes() + far.tobytes()
    yield low[is_used].tobytes() + high[is_used].tobytes()
    yield basis[is_used].tobytes()
    for numbers, least, most in zip(near[is_used], low[is_used], high[is_used], strict=True):
        base = int(most) - int(least) + 1
        n_each = _n_each(base)
        digits = np.pad(numbers - least, (0, -len(numbers) % n_each)).reshape(-1, n_each)
        yield (digits @ base ** np.arange(n_each)).astype(np.uint8).tobytes()


def _restore(source: _Source, heads: Array) -> None:
    """Fills ``heads`` [H, n, d] with what `_pieces` made of them."""
    n_heads, n, d = heads.shape
    n_channels = n_heads * d
    is_far = source.bits(n)
    is_used = source.bits(n_channels)
    n_used, n_near = int(is_used.sum()), n - int(is_far.sum())
    mean, scales = source.array(n_channels, np.float32), source.array(n_used, np.float32)
    far = source.array((n - n_near) * n_channels, heads.dtype.type)
    low, high = source.array(n_used, np.int8), source.array(n_used, np.int8)
    basis = source.array(n_used * n_channels, np.int8).reshape(n_used, n_channels)
    codes = np.zeros((n_used, n_near), np.float32)
    for of_axis, least, most in zip(codes, low.tolist(), high.tolist(), strict=True):
        if not least < most:
            raise ValueError("an axis without codes")
        digits = _digits(most - least + 1)
        packed = source.array(-(-n_near // digits.shape[1]), np.uint8)
        of_axis[:] = digits.take(packed, axis=0).reshape(-1)[:n_near]
    by_token = heads.swapaxes(0, 1)
    with np.errstate(all="ignore"):
        axes = basis * scales[:, None]
        x = codes.T @ axes + (mean + low @ axes)
        by_token[~is_far] = x.reshape(n_near, n_heads, d).astype(heads.dtype)
    by_token[is_far] = far.reshape(-1, n_heads, d)


def _axes(x: Float32) -> tuple[Float32, npt.NDArray[np.int8]]:
    """Returns axes along which columns of ``x`` do not vary together: scales, and rows of int8."""
    product = x.T.astype(np.float64) @ x
    if not np.isfinite(product).all():
        product = np.eye(len(product))
    vectors = np.linalg.eigh(product)[1].T
    scales = np.abs(vectors).max(axis=1) / _MAX_CODE
    return scales.astype(np.float32), np.rint(vectors / scales[:, None]).astype(np.int8)


def _together(heads: Array) -> Float32:
    """Returns [H, n, d] as rows of all channels, [n, H * d]."""
    by_token = heads.swapaxes(0, 1).astype(np.float32)
    return by_token.reshape(len(by_token), -1)


def _groups(layer: Array) -> Iterator[Array]:
    """Yields views of the heads of ``layer`` [H, n, d] that go together."""
    n = _group(layer[None])
    for first in range(0, len(layer), n):
        yield layer[first : first + n]


def _group(part: Array) -> int:
    """Returns how many heads of [L, H, n, d] go together."""
    n_heads, d = part.shape[1], part.shape[3]
    return max(1, min(int(n_heads), _N_CHANNELS // int(d)))


def _spread(layer: Array) -> float:
    """Returns what numbers of a layer [H, n, d] deviate from the means of their channels."""
    x = layer[:, _N_FIRST:].astype(np.float32)
    return float(np.sqrt(np.square(x - x.mean(axis=1, keepdims=True)).mean()))


def _n_each(base: int) -> int:
    """Returns how many digits of ``base`` fit in a byte."""
    return next((n for n in range(8, 1, -1) if base**n <= 256), 1)


@cache
def _digits(base: int) -> Float32:
    """Returns those of each byte, the lowest first, [256, n]."""
    n = np.arange(256)[:, None] // base ** np.arange(_n_each(base))
    return (n % base).astype(np.float32)


class _Source:
    """Unpacks what `_packed` wrote, no more bytes than are asked for."""

    def __init__(self, packed: bytes) -> None:
        self._coder = zlib.decompressobj(-zlib.MAX_WBITS)
        self._packed = memoryview(packed)
        self._rest: bytes | memoryview = b""  # of what the coder was given, which it copies

    def array(self, n: int, dtype: type[Any]) -> Array:
        """Returns the next ``n`` numbers of ``dtype``."""
        return np.frombuffer(self._exactly(n * np.dtype(dtype).itemsize), dtype)

    def bits(self, n: int) -> npt.NDArray[np.bool_]:
        """Returns the next ``n`` bits, which end with a byte."""
        return np.unpackbits(self.array(-(-n // 8), np.uint8), count=n).astype(bool)

    def check_end(self) -> None:
        """Raises a ValueError if there is more."""
        self._unpacked(1)
        if not self._coder.eof or self._coder.unused_data or self._rest or self._packed:
            raise ValueError("more than the rows")

    def _exactly(self, n: int) -> bytes:
        pieces, n_missing = [], n
        while n_missing and (piece := self._unpacked(n_missing)):
            pieces.append(piece)
            n_missing -= len(piece)
        if n_missing:
            raise ValueError("fewer than the rows")
        return b"".join(pieces)

    def _unpacked(self, n: int) -> bytes:
        piece = b""
        while not (piece or self._coder.eof) and (self._rest or self._packed):
            if not self._rest:
                self._rest, self._packed = self._packed[:_PIECE], self._packed[_PIECE:]
            try:
                piece = self._coder.decompress(self._rest, n)
            except zlib.error as error:
                raise ValueError(str(error)) from None
            self._rest = self._coder.unconsumed_tail
        return piece
