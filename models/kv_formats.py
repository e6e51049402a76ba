"""Formats of KV caches: one row each, which says all that Python knows of one.

What keeps numbers in a format is the kernels' business (kernels/src/kv_append.h); the layouts are
drawn in kernels/src/kernels.h.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from edgedec.models.config import ModelConfig
from edgedec.models.errors import ConfigError

KV_PANEL = 16
"""Tokens that lie side by side in a KV panel."""

_SCALES_NBYTES = 2 * KV_PANEL

KVKind = Literal["panels", "rows", "states"]
Part = Literal["keys", "values"]
Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Shape = tuple[Any, ...]
"""Sizes may be names, or a compiler's variables."""


class KVPanels(Protocol):
    """How panels of a format lie in the arrays of a KV cache, behind the axes of layers and heads.

    index: number in the C interface. element: type of the arrays. row_type: of a row's numbers.
    """

    index: int
    element: str
    row_type: type[np.generic]

    def block_nbytes(self, head_size: int) -> tuple[int, int]:
        """Returns the bytes of 16 keys and of 16 values of one head."""

    def shapes(self, n_panels: Any, n_rows: Any, head_size: int) -> tuple[Shape, Shape]:
        """Returns the last axes of keys and of values. n_rows: 16 times ``n_panels``."""

    def views(self, keys: Array, values: Array, head_size: int) -> dict[str, Array]:
        """Returns views by token, [..., n_panels, 16, ...], by the names of what a row consists of.

        ``keys`` and ``values`` are among them.
        """

    def numbers(self, rows: Mapping[str, Array], part: Part) -> Float32:
        """Returns what rows stand for, which are named as `views` names them.

        Shapes: [..., T, head_size].
        """

    def rows_of(self, keys: Float32, values: Float32) -> dict[str, Array]:
        """Returns rows that stand for these numbers [..., T, head_size], named as in `views`."""


class _Float16Panels:
    """Keys [P, head_size, 16], token t in panel t // 16, lane t % 16; values [16 P, head_size]."""

    index = 0
    element = "float16"
    row_type: type[np.generic] = np.float16

    def block_nbytes(self, head_size: int) -> tuple[int, int]:
        return 2 * KV_PANEL * head_size, 2 * KV_PANEL * head_size

    def shapes(self, n_panels: Any, n_rows: Any, head_size: int) -> tuple[Shape, Shape]:
        return (n_panels, head_size, KV_PANEL), (n_rows, head_size)

    def views(self, keys: Array, values: Array, head_size: int) -> dict[str, Array]:
        by_panel = values.reshape(*keys.shape[:-2], KV_PANEL, head_size)
        return {"keys": keys.swapaxes(-1, -2), "values": by_panel}

    def numbers(self, rows: Mapping[str, Array], part: Part) -> Float32:
        return rows[part].astype(np.float32)

    def rows_of(self, keys: Float32, values: Float32) -> dict[str, Array]:
        return {"keys": keys.astype(np.float16), "values": values.astype(np.float16)}


class _Int8Panels:
    """Both [P, bytes of a block] uint8: 16 float16 scales, one for each token, then the codes.

    Those of keys are [head_size, 16], of values [16, head_size in whole vectors of 16].
    """

    index = 1
    element = "uint8"
    row_type: type[np.generic] = np.int8

    def block_nbytes(self, head_size: int) -> tuple[int, int]:
        nbytes = _SCALES_NBYTES + KV_PANEL * (-(-head_size // 16) * 16)
        return nbytes, nbytes

    def shapes(self, n_panels: Any, n_rows: Any, head_size: int) -> tuple[Shape, Shape]:
        of_keys, of_values = self.block_nbytes(head_size)
        return (n_panels, of_keys), (n_panels, of_values)

    def views(self, keys: Array, values: Array, head_size: int) -> dict[str, Array]:
        lead = keys.shape[:-1]
        key_codes, value_codes = (a[..., _SCALES_NBYTES:].view(np.int8) for a in (keys, values))
        by_channel = key_codes[..., : KV_PANEL * head_size].reshape(*lead, head_size, KV_PANEL)
        row_nbytes = value_codes.shape[-1] // KV_PANEL
        scales = [a[..., :_SCALES_NBYTES].view(np.float16) for a in (keys, values)]
        return {
            "keys": by_channel.swapaxes(-1, -2),
            "values": value_codes.reshape(*lead, KV_PANEL, row_nbytes)[..., :head_size],
            "key_scales": scales[0],
            "value_scales": scales[1],
        }

    def numbers(self, rows: Mapping[str, Array], part: Part) -> Float32:
        scales = rows["key_scales" if part == "keys" else "value_scales"].astype(np.float32)
        numbers: Float32 = rows[part].astype(np.float32) * scales[..., None]
        return (
            numbers @ _mixing(numbers.shape[-1]) if part == "keys" else numbers
        )  # its own inverse

    def rows_of(self, keys: Float32, values: Float32) -> dict[str, Array]:
        key_codes, key_scales = _codes(keys @ _mixing(keys.shape[-1]))
        value_codes, value_scales = _codes(values)
        return {
            "keys": key_codes,
            "values": value_codes,
            "key_scales": key_scales,
            "value_scales": value_scales,
        }


class _K5V4Panels:
    """Both [P, bytes of a block] uint8: 16 float16 scales, one for each token, then codes.

    Of keys, [bytes of a row, 16]: sizes of eight channels, two in a byte, then a byte of their
    signs, bit c of channel c; the next eight follow, in the end fewer. A byte of values, [16,
    head_size in whole runs of 32 / 2], holds two dimensions 16 apart. The low nibble is the first.
    """

    index = 2
    element = "uint8"
    row_type: type[np.generic] = np.uint8

    def block_nbytes(self, head_size: int) -> tuple[int, int]:
        values = _SCALES_NBYTES + KV_PANEL * (-(-head_size // 32) * 16)
        return _SCALES_NBYTES + KV_PANEL * _key_row_nbytes(head_size), values

    def shapes(self, n_panels: Any, n_rows: Any, head_size: int) -> tuple[Shape, Shape]:
        of_keys, of_values = self.block_nbytes(head_size)
        return (n_panels, of_keys), (n_panels, of_values)

    def views(self, keys: Array, values: Array, head_size: int) -> dict[str, Array]:
        lead = keys.shape[:-1]
        key_codes, value_codes = (a[..., _SCALES_NBYTES:] for a in (keys, values))
        by_byte = key_codes.reshape(*lead, _key_row_nbytes(head_size), KV_PANEL)
        scales = [a[..., :_SCALES_NBYTES].view(np.float16) for a in (keys, values)]
        return {
            "keys": by_byte.swapaxes(-1, -2),
            "values": value_codes.reshape(*lead, KV_PANEL, value_codes.shape[-1] // KV_PANEL),
            "key_scales": scales[0],
            "value_scales": scales[1],
        }

    def numbers(self, rows: Mapping[str, Array], part: Part) -> Float32:
        d = _head_size_of(rows["keys"].shape[-1])
        if part == "keys":
            is_sign = np.arange(rows["keys"].shape[-1]) % 5 == 4
            is_sign[-1] = True
            pairs, signs = rows["keys"][..., ~is_sign], rows["keys"][..., is_sign]
            sizes = _SIZES[
                np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:-1], d)
            ]
            is_negative = np.unpackbits(signs, axis=-1, count=d, bitorder="little").astype(bool)
            levels = np.where(is_negative, -sizes, sizes)
        else:
            low, high = rows["values"] & 15, rows["values"] >> 4
            runs = (*low.shape[:-1], low.shape[-1] // 16, 16)
            codes = np.stack([low.reshape(runs), high.reshape(runs)], axis=-2)
            levels = _LEVELS[codes.reshape(*low.shape[:-1], -1)[..., :d]]
        scales = rows["key_scales" if part == "keys" else "value_scales"].astype(np.float32)
        numbers: Float32 = levels * scales[..., None]
        return numbers @ _mixing(d)

    def rows_of(self, keys: Float32, values: Float32) -> dict[str, Array]:
        d = keys.shape[-1]
        mixed = keys @ _mixing(d)
        sizes, key_scales = _level_codes(np.abs(mixed), _SIZES, _SIZE_STEP)
        pairs = sizes[..., ::2] | sizes[..., 1::2] << 4
        signs = np.packbits(mixed < 0, axis=-1, bitorder="little")
        at = [min(4 * (i + 1), d // 2) for i in range(signs.shape[-1])]  # behind their sizes
        value_codes, value_scales = _level_codes(values @ _mixing(d), _LEVELS, _LEVEL_STEP)
        rest = [(0, 0)] * (values.ndim - 1) + [(0, -d % 32)]
        halves = np.pad(value_codes, rest).reshape(*values.shape[:-1], -1, 2, 16)
        packed_values = halves[..., 0, :] | halves[..., 1, :] << 4
        return {
            "keys": np.insert(pairs, at, signs, axis=-1),
            "values": packed_values.reshape(*values.shape[:-1], -1),
            "key_scales": key_scales,
            "value_scales": value_scales,
        }


_LEVELS = np.array(
    [-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127], np.float32
)
_SIZES = np.array([3, 8, 13, 18, 24, 29, 35, 41, 47, 54, 61, 70, 79, 90, 105, 127], np.float32)
"""What codes of values, and of keys but for their signs, stand for, times the scale of their row.

Source: kernels/src/kv_levels.h.
"""

_LEVEL_STEP = np.float32(2.7326 / 127)
_SIZE_STEP = np.float32(3.2607 / 127)
"""Of a row's deviation."""


def _key_row_nbytes(head_size: int) -> int:
    """Returns the bytes of a row's codes of keys."""
    return head_size // 2 + -(-head_size // 8)


def _head_size_of(key_row_nbytes: int) -> int:
    """Returns the head size whose rows have so many bytes of codes of keys."""
    return 2 * (key_row_nbytes - -(-key_row_nbytes // 5))


def _level_codes(x: Float32, levels: Float32, step: np.float32) -> tuple[Array, Array]:
    """Returns the numbers of the nearest ``levels``, and the scales of rows. step: see above."""
    steps = np.sqrt((x * x).mean(axis=-1, keepdims=True)) * step
    codes = np.searchsorted((levels[1:] + levels[:-1]) / 2, x / np.where(steps > 0, steps, 1))
    nearest = levels[codes]
    best = (x * nearest).sum(axis=-1) / (nearest * nearest).sum(axis=-1)
    return codes.astype(np.uint8), np.clip(best, 0, 65504).astype(np.float16)


def _codes(x: Float32) -> tuple[Array, Array]:
    """Returns the codes of rows and their scales."""
    scales = np.minimum(np.abs(x).max(axis=-1) / 127, np.float32(65504)).astype(np.float16)
    inverse = 1 / np.where(scales > 0, scales, np.float16(1)).astype(np.float32)
    codes = np.clip(np.rint(x * inverse[..., None]), -127, 127)
    return np.where(scales[..., None] > 0, codes, 0).astype(np.int8), scales


def _mixing(head_size: int) -> Float32:
    """Returns the orthogonal matrix that codes are made after (kernels/src/kv_append.h)."""
    run = head_size & -head_size
    hadamard = np.ones((1, 1))
    while len(hadamard) < run:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    whole: Float32 = np.kron(np.eye(head_size // run), hadamard / np.sqrt(run)).astype(np.float32)
    return whole


@dataclass(frozen=True)
class KVFormat:
    """One row of the table.

    kinds: layouts of a KV cache that may have it. is_rounded: keeps less than attention computes,
    which an export measures. needs_offsets: is of little use for keys with an offset. panels: of
    the layout of that kind.
    """

    name: str
    kinds: tuple[KVKind, ...]
    is_rounded: bool = False
    needs_offsets: bool = False
    panels: KVPanels | None = None


KV_FORMATS = {
    kv_format.name: kv_format
    for kv_format in (
        KVFormat("float16", ("panels", "rows", "states"), panels=_Float16Panels()),
        KVFormat("int8", ("panels",), is_rounded=True, panels=_Int8Panels()),
        KVFormat("k5v4", ("panels",), True, needs_offsets=True, panels=_K5V4Panels()),
        KVFormat("float32", ("rows", "states")),
        KVFormat("uint16", ("rows",)),
    )
}
"""By the names that options, contracts and files give them."""


def find_kv_format(name: str) -> KVFormat:
    """Returns the format called ``name``; an unknown one is a ConfigError."""
    if name not in KV_FORMATS:
        raise ConfigError(f"KV cache format is {name!r}, expected one of {', '.join(KV_FORMATS)}")
    return KV_FORMATS[name]


def kv_formats_of(kind: KVKind) -> tuple[str, ...]:
    """Returns the names of the formats that a layout of this kind may have."""
    return tuple(name for name, kv_format in KV_FORMATS.items() if kind in kv_format.kinds)


def kv_panels_of(name: str) -> KVPanels:
    """Returns how panels of the format ``name`` lie, which must have some."""
    panels = find_kv_format(name).panels
    assert panels is not None, f"{name} has no panels"
    return panels


def kv_panels_of_rows(row_type: np.dtype[Any]) -> KVPanels:
    """Returns the panels that rows of numbers of ``row_type`` are from."""
    all_panels = (kv_format.panels for kv_format in KV_FORMATS.values())
    return next(panels for panels in all_panels if panels and panels.row_type == row_type)


def kv_row_nbytes(
    config: ModelConfig, kv_format: str, layers: Collection[int] | None = None
) -> int:
    """Returns the bytes that one token takes in ``layers``, in all that keep some when None."""
    panels = kv_panels_of(kv_format)
    kept = config.kv_layers if layers is None else layers
    blocks = (sum(panels.block_nbytes(config.head_size_of(i))) for i in kept)
    return config.n_kv_heads * sum(blocks) // KV_PANEL


def kv_block_nbytes(config: ModelConfig, kv_format: str) -> int:
    """Returns the bytes of 16 keys of one head, in the first layer that keeps some."""
    return kv_panels_of(kv_format).block_nbytes(config.head_size_of(config.kv_layers[0]))[0]
