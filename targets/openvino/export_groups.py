"""Quantised matrices as OpenVINO's plugins read them: codes in groups, which stay compressed.

A weight is ``scale * (code - zero_point)``. Codes of formats without a minimum are signed and have
no zero point; the others' zero points are floats, for which the minimum is divided by the scale.
All formats keep their weights, but for the rounding of that quotient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.export.to_onnx.nbits import plain_rows
from edgedec.export.weights_file import Chunks, StoredTensor
from edgedec.models.quant import PlainTensor, QuantFormat
from edgedec.models.weights import WeightSource

_SMALL = np.float32(2.0**-20)
"""Scale, in minimums, of groups whose own is 0: what its codes then add rounds away."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class GroupLayout:
    """How the matrix ``name`` [n, k] of ``format`` is kept.

    Shapes: codes [n, n_groups, group] of ``element``, of 4 bits two in a byte, the lower half
        first; scales and, if the format has a minimum, zero points [n, n_groups, 1] float32.
    """

    name: str
    format: QuantFormat
    n: int
    k: int

    @property
    def group(self) -> int:
        """Weights that share a scale."""
        return self.format.group

    @property
    def n_groups(self) -> int:
        """Groups of a row."""
        return self.k // self.group

    @property
    def element(self) -> str:
        """Type of the codes, as OpenVINO calls it."""
        sign = "u" if self.format.has_minimum else "i"
        return f"{sign}{4 if self.format.bits == 4 else 8}"

    def tensors(self) -> tuple[StoredTensor, ...]:
        """Returns codes, scales and, if there are any, zero points, as they are stored."""
        nbytes = self.group // 2 if self.element.endswith("4") else self.group
        dims = (self.n, self.n_groups, 1)
        scales = StoredTensor(f"{self.name}.scales", False, dims)
        codes = StoredTensor(f"{self.name}.codes", True, (self.n, self.n_groups, nbytes))
        if not self.format.has_minimum:
            return codes, scales
        return codes, scales, StoredTensor(f"{self.name}.zero_points", False, dims)

    def chunks(self, source: WeightSource) -> dict[str, Chunks]:
        """Returns what yields the arrays of each stored tensor."""
        parts = (self._codes, self._scales, self._zero_points)
        return {
            tensor.name: partial(_each, part, source, self.name)
            for tensor, part in zip(self.tensors(), parts, strict=False)
        }

    def _codes(self, plain: PlainTensor) -> Array:
        codes = plain.codes.astype(np.uint8)
        if not self.format.has_minimum:
            codes = codes - np.uint8(self.format.zero_point)
        if self.element.endswith("8"):
            return codes
        return codes[:, 0::2] & 15 | codes[:, 1::2] << 4

    def _scales(self, plain: PlainTensor) -> Array:
        scales, minimums = plain.groups()
        return scales if minimums is None else np.where(scales == 0, -_SMALL * minimums, scales)

    def _zero_points(self, plain: PlainTensor) -> Array:
        _, minimums = plain.groups()
        assert minimums is not None
        scales = self._scales(plain)
        return np.divide(-minimums, scales, out=np.zeros_like(scales), where=scales != 0)


def _each(part: Any, source: WeightSource, name: str) -> Iterator[Array]:
    return map(part, plain_rows(source, [name]))
