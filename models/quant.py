"""Storage formats of matrices: what each one keeps, and how it reads back as float32.

A *plain* tensor holds one code per weight and the scales beside it; it is what importers and
quantisers produce and what packing consumes. The packed byte layout belongs to the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt


class ScaleKind(Enum):
    """How codes become weights. All arithmetic is float32, in the order written.

    NONE: the values are floats themselves.
    SINGLE: ``scale * (code - zero_point)``, one float16 scale per 32. Of a format with levels, a
        code is that of a level.
    ONE_MIN: ``scale * code + minimum``, float16 scale and minimum per 32.
    TWO_MIN: ``(scale * sub_scale) * code - (minimum * sub_minimum)``; float16 scale and minimum
        per 256, uint8 sub_scale and sub_minimum per 32.
    TWO: ``(scale * sub_scale) * (code - zero_point)``; float16 scale per 256, int8 sub_scale
        per 16.
    """

    NONE = 0
    SINGLE = 1
    ONE_MIN = 2
    TWO_MIN = 3
    TWO = 4


@dataclass(frozen=True)
class QuantFormat:
    """One row of the format table. ``bits`` counts the stored bits of one code."""

    name: str
    index: int  # number in the C interface
    bits: int
    kind: ScaleKind
    zero_point: int = 0
    levels: tuple[int, ...] = ()  # what each code stands for, if not for itself

    @property
    def is_float(self) -> bool:
        """Whether codes are the weights themselves."""
        return self.kind is ScaleKind.NONE

    @property
    def has_minimum(self) -> bool:
        """Whether something is added to each group of weights besides their scaled codes."""
        return self.kind in (ScaleKind.ONE_MIN, ScaleKind.TWO_MIN)

    @property
    def group(self) -> int:
        """Weights that share a scale, the smaller of the two of a two-level format."""
        return 16 if self.kind is ScaleKind.TWO else 32

    def steps(self, codes: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
        """Returns what the scales of ``codes`` are multiplied by."""
        numbers = np.array(self.levels, np.float32)[codes] if self.levels else codes
        return numbers.astype(np.float32) - np.float32(self.zero_point)

    def even(self) -> QuantFormat:
        """Returns the format whose codes stand for themselves and for what those of this one do."""
        if not self.levels:
            return self
        return next(
            row
            for row in _ROWS
            if (row.kind, row.zero_point) == (self.kind, self.zero_point) and not row.levels
        )

    def nearest(self, steps: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """Returns the codes of those levels that are nearest to ``steps``."""
        levels = np.array(self.levels, np.float32) - np.float32(self.zero_point)
        return np.searchsorted((levels[1:] + levels[:-1]) / 2, steps).astype(np.uint8)


_ROWS = (
    QuantFormat("f32", 0, 32, ScaleKind.NONE),
    QuantFormat("f16", 1, 16, ScaleKind.NONE),
    QuantFormat("bf16", 2, 16, ScaleKind.NONE),
    QuantFormat("q4_0", 3, 4, ScaleKind.SINGLE, 8),
    QuantFormat("q4_1", 4, 4, ScaleKind.ONE_MIN),
    QuantFormat("q5_0", 5, 5, ScaleKind.SINGLE, 16),
    QuantFormat("q5_1", 6, 5, ScaleKind.ONE_MIN),
    QuantFormat("q8_0", 7, 8, ScaleKind.SINGLE, 128),
    QuantFormat("q8_1", 8, 8, ScaleKind.ONE_MIN),
    QuantFormat("q4_k", 9, 4, ScaleKind.TWO_MIN),
    QuantFormat("q5_k", 10, 5, ScaleKind.TWO_MIN),
    QuantFormat("q6_k", 11, 6, ScaleKind.TWO, 32),
    QuantFormat("q3_nl", 12, 3, ScaleKind.SINGLE, 16, (0, 6, 10, 13, 16, 19, 23, 28)),
    QuantFormat("q2_0", 13, 2, ScaleKind.SINGLE, 8, (7, 8, 9, 10)),
)
FORMATS: dict[str, QuantFormat] = {row.name: row for row in _ROWS}
EVEN_FORMATS = tuple(row.name for row in _ROWS if not row.levels)
"""Formats whose codes stand for themselves, which other libraries' products take."""


@dataclass(frozen=True, eq=False)
class PlainTensor:
    """A matrix [N, K] in one format, unpacked.

    Shapes:
        codes: [N, K]; uint8 codes, or the values (float32, float16, or bfloat16 bits as uint16).
        scale: [N, ceil(K / 32)] or, two-level, [N, K / 256] float16.
        minimum: like ``scale``.
        sub_scale: [N, K / 32] uint8 (TWO_MIN) or [N, K / 16] int8 (TWO).
        sub_minimum: [N, K / 32] uint8.
    Fields a format does not use are empty.
    """

    format: QuantFormat
    codes: npt.NDArray[np.generic]
    scale: npt.NDArray[np.float16] = field(default_factory=lambda: np.zeros((0, 0), np.float16))
    minimum: npt.NDArray[np.float16] = field(default_factory=lambda: np.zeros((0, 0), np.float16))
    sub_scale: npt.NDArray[np.generic] = field(default_factory=lambda: np.zeros((0, 0), np.uint8))
    sub_minimum: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, 0), np.uint8))

    @property
    def shape(self) -> tuple[int, int]:
        """N and K."""
        n, k = self.codes.shape
        return n, k

    def dequantize(self) -> npt.NDArray[np.float32]:
        """Returns the weights [N, K] float32, rounded as `ScaleKind` states."""
        if self.format.is_float:
            return _floats(self.format, self.codes)
        k, group = self.shape[1], self.format.group
        scale, minimum = self.groups()
        weights = _spread(scale, group, k) * self.format.steps(self.codes)
        return weights if minimum is None else weights + _spread(minimum, group, k)

    def even(self) -> PlainTensor:
        """Returns the same weights in the format that `QuantFormat.even` names."""
        if not self.format.levels:
            return self
        codes = np.array(self.format.levels, np.uint8)[self.codes]
        return PlainTensor(self.format.even(), codes, self.scale)

    def groups(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None]:
        """Returns what the codes of each group are multiplied by, and what is added, if anything.

        Shapes: each [N, ceil(K / group)].
        """
        match self.format.kind:
            case ScaleKind.SINGLE:
                return self.scale.astype(np.float32), None
            case ScaleKind.ONE_MIN:
                return self.scale.astype(np.float32), self.minimum.astype(np.float32)
            case ScaleKind.TWO_MIN:
                scale = self._two_level(self.scale, self.sub_scale, 8)
                return scale, -self._two_level(self.minimum, self.sub_minimum, 8)
            case _:
                return self._two_level(self.scale, self.sub_scale, 16), None

    @staticmethod
    def _two_level(
        outer: npt.NDArray[np.float16], inner: npt.NDArray[np.generic], n_inner: int
    ) -> npt.NDArray[np.float32]:
        return np.repeat(outer.astype(np.float32), n_inner, axis=1) * inner.astype(np.float32)


def joined(parts: Sequence[PlainTensor], fmt: QuantFormat) -> PlainTensor:
    """Returns matrices one below the other; those of another format than ``fmt`` as floats."""
    if len(parts) == 1 and parts[0].format == fmt:
        return parts[0]
    if any(part.format != fmt for part in parts):
        return PlainTensor(fmt, np.concatenate([part.dequantize() for part in parts]))
    names = ("codes", "scale", "minimum", "sub_scale", "sub_minimum")
    whole = ([getattr(part, name) for part in parts] for name in names)
    return PlainTensor(fmt, *(np.concatenate(arrays) for arrays in whole))


def _spread(per_group: npt.NDArray[np.float32], group: int, k: int) -> npt.NDArray[np.float32]:
    return np.repeat(per_group, group, axis=1)[:, :k]


def _floats(fmt: QuantFormat, values: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    if fmt.name == "bf16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)
