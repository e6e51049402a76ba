"""Matrices of whole numbers with a scale for each group of a row: MLX, compressed-tensors.

Source: vllm-project/compressed-tensors ``compressors/quantized_compressors`` (layouts, Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.safetensors_file import StoredTensor
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.fields import Fields, shown
from edgedec.models.quant import FORMATS, PlainTensor, QuantFormat

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.intp]

_GROUP = 32
WORD_BITS = 32
_WITH_MINIMUM = {2: "q4_1", 3: "q4_1", 4: "q4_1", 5: "q5_1", 6: "q8_1", 8: "q8_1"}
_CENTRED = {2: "q4_0", 4: "q4_0", 8: "q8_0"}
"""Bits of a code -> the smallest format that holds it."""


@dataclass(frozen=True)
class GroupedMatrix:
    """Weights ``scale * (code - zero) + minimum``, by row and group of a row.

    codes: [N, W] words that hold codes from their lowest bits on, or [N, K] signed bytes. scales,
    minimums: [N, groups]; the scales of a matrix may be one for each row. zeros: of each row and
    group, packed along the rows; None where the zero is in the middle. groups: the group of each
    input; None where they follow each other.
    """

    codes: StoredTensor
    shape: tuple[int, ...]
    n_bits: int
    scales: StoredTensor
    minimums: StoredTensor | None = None
    zeros: StoredTensor | None = None
    groups: StoredTensor | None = None

    @property
    def format(self) -> QuantFormat:
        """The smallest format that holds it to the last bit; floats if none does."""
        if not self._is_regular:
            return FORMATS["f32"]
        if self.minimums is not None:
            return FORMATS[_WITH_MINIMUM[self.n_bits]]
        if self._zero is None:
            return FORMATS[_CENTRED[self.n_bits]]
        return FORMATS["q5_0" if self.n_bits <= 4 else "f32"]

    @property
    def stand_in(self) -> QuantFormat | None:
        """The format that stands in for floats."""
        return FORMATS["q8_0"] if self.format.is_float else None

    def plain(self, rows: Rows) -> PlainTensor:
        """Returns some rows."""
        fmt, group = self.format, self._group_of
        codes = self._codes(rows)
        scale = self._scale[rows]
        minimum = None if self.minimums is None else _floats(self.minimums)[rows]
        if minimum is None:
            middle = 1 << self.n_bits - 1
            zero = middle if self._zero is None else self._zero[rows][:, group]
            codes = codes - zero
        if fmt.is_float:
            values = codes.astype(np.float32) * scale[:, group]
            return PlainTensor(fmt, values if minimum is None else values + minimum[:, group])
        first = group[::_GROUP]  # of each 32 inputs
        halves = np.ascontiguousarray(scale[:, first], np.float16)
        if minimum is None:
            return PlainTensor(fmt, (codes + fmt.zero_point).astype(np.uint8), halves)
        lowest = np.ascontiguousarray(minimum[:, first], np.float16)
        return PlainTensor(fmt, codes.astype(np.uint8), halves, lowest)

    def _codes(self, rows: Rows) -> npt.NDArray[np.int16]:
        """Returns codes [n, K], from 0 on."""
        stored, k = self.codes.values()[rows], self.shape[1]
        if self.codes.type == "I8":
            return stored.astype(np.int16) + 128
        return unpacked(stored, self.n_bits, k).astype(np.int16)

    @cached_property
    def _scale(self) -> Floats:
        floats = _floats(self.scales)
        return np.broadcast_to(
            floats.reshape(-1, *floats.shape[1:]) if floats.ndim == 2 else floats.reshape(-1, 1),
            (self.shape[0], self._n_groups),
        )

    @property
    def _n_groups(self) -> int:
        return self.scales.shape[1] if len(self.scales.shape) == 2 else 1

    @cached_property
    def _zero(self) -> npt.NDArray[np.int16] | None:
        """The zeros [N, groups], counted as the codes are."""
        if self.zeros is None:
            return None
        if self.zeros.type == "I8":
            return self.zeros.values().reshape(self.shape[0], -1).astype(np.int16) + 128
        words = np.ascontiguousarray(self.zeros.values().T)
        return unpacked(words, self.n_bits, self.shape[0]).T.astype(np.int16)

    @cached_property
    def _group_of(self) -> Rows:
        """The group of each input."""
        if self.groups is not None:
            return self.groups.values().astype(np.intp)
        return np.arange(self.shape[1]) // (self.shape[1] // self._n_groups)

    @cached_property
    def _is_regular(self) -> bool:
        """Whether groups of 32 inputs share a scale that float16 holds, and so with minimums."""
        group = self._group_of
        if len(group) % _GROUP or (group.reshape(-1, _GROUP) != group[::_GROUP, None]).any():
            return False
        return _fits_half(_floats(self.scales)) and (
            self.minimums is None or _fits_half(_floats(self.minimums))
        )


def _floats(tensor: StoredTensor) -> Floats:
    return PlainTensor(tensor.format, tensor.values()).dequantize()


def _fits_half(values: Floats) -> bool:
    with np.errstate(over="ignore"):
        return bool((values.astype(np.float16).astype(np.float32) == values).all())


def unpacked(words: npt.NDArray[Any], n_bits: int, k: int) -> npt.NDArray[np.uint8]:
    """Returns the first ``k`` codes of each row of words, whose lowest bits come first."""
    rows = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1)
    if n_bits == 8:
        return rows[:, :k]
    bits = np.unpackbits(rows, axis=1, bitorder="little")
    bits = bits[:, : bits.shape[1] // n_bits * n_bits].reshape(len(words), -1, n_bits)
    weights = (1 << np.arange(n_bits)).astype(np.uint8)
    return np.asarray((bits * weights).sum(axis=2, dtype=np.uint8)[:, :k])


def compressed_matrix(tensors: dict[str, Any], stem: str, config: Fields) -> GroupedMatrix:
    """Returns a matrix of compressed-tensors, and takes its parts out of ``tensors``.

    Raises:
        CheckpointError: Parts are missing or do not fit each other.
        UnsupportedModelError: It has other bits than 2, 4 or 8.
    """
    is_packed = f"{stem}.weight_packed" in tensors
    codes, scales = taken_parts(
        tensors, stem, ("weight_packed" if is_packed else "weight", "weight_scale")
    )
    shape, zeros, groups = (
        tensors.pop(f"{stem}.{part}", None)
        for part in ("weight_shape", "weight_zero_point", "weight_g_idx")
    )
    for part in ("input_scale", "input_zero_point", "weight_global_scale"):
        tensors.pop(f"{stem}.{part}", None)  # of activations, which are quantised as they come
    if is_packed and (shape is None or shape.shape != (2,)):
        raise CheckpointError(f"missing tensor {stem}.weight_shape; fetch it again")
    n, k = map(int, shape.values()) if is_packed else codes.shape[:2]
    n_bits = _compressed_bits(stem, config, codes, k) if is_packed else 8
    n_groups = scales.shape[1] if len(scales.shape) == 2 else 1
    fits = len(codes.shape) == 2 and codes.shape[0] == n and not scales.is_raw and n_groups > 0
    fits = fits and scales.shape in ((n, n_groups), (n,), (1,), (), (1, 1)) and k % n_groups == 0
    if fits and zeros is not None:
        packed = (-(-n // (WORD_BITS // n_bits)), n_groups)
        fits = zeros.shape in ((packed,) if is_packed else ((n, n_groups), (n,), (1,)))
    if groups is not None:
        values = groups.values()
        fits = fits and groups.shape == (k,) and values.min() >= 0 and values.max() < n_groups
    if not fits:
        raise CheckpointError(
            f"{stem}: scales of shape {list(scales.shape)} do not fit a matrix of {[n, k]}; fetch "
            "it again"
        )
    return GroupedMatrix(codes, (n, k), n_bits, scales, None, zeros, groups)


def _compressed_bits(stem: str, config: Fields, codes: StoredTensor, k: int) -> int:
    """Returns the bits of a code, which the width of the words tells."""
    width = codes.shape[-1]
    for n_bits in _CENTRED:
        if width == -(-k // (WORD_BITS // n_bits)):
            return n_bits
    raise UnsupportedModelError(
        f"{config.origin}: {stem} has {width} words for {k} weights, expected 2, 4 or 8 bits each: "
        "take the checkpoint in another type"
    )


def taken_parts(tensors: dict[str, Any], stem: str, parts: Sequence[str]) -> list[StoredTensor]:
    """Returns the tensors of a matrix, which are taken out of ``tensors``.

    Raises:
        CheckpointError: One is missing.
    """
    names = [f"{stem}.{part}" for part in parts]
    if missing := [name for name in names if name not in tensors]:
        raise CheckpointError(
            f"missing tensor {shown(missing[0])}; the file is incomplete, fetch it again"
        )
    return [tensors.pop(name) for name in names]
