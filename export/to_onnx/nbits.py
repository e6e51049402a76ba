"""Quantised matrices as ONNX Runtime's own operators read them: blocks of 4 or 8 bits.

A weight is ``scale * (code - middle)``, the middle being half of what codes can be. Storage formats
with a minimum per group have an *offset* per group besides, which is multiplied with the sum of the
group's activations and added. All formats keep their weights, but for the rounding of that sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.export.weights_file import Chunks
from edgedec.models.families import matrices
from edgedec.models.quant import PlainTensor, QuantFormat
from edgedec.models.weights import WeightSource

OFFSET_GROUP = 32
"""Weights that share an offset."""

_CHUNK_WEIGHTS = 1 << 22

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class BlockLayout:
    """How a matrix [n, k] of ``format`` is kept.

    Shapes: codes [n, n_blocks, bytes of a block] uint8, of 4 bits the lower half first; scales
        [n, n_blocks] float32; offsets [n_groups, n] float32, if it has any.
    """

    format: QuantFormat
    n: int
    k: int

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 4 if self.format.bits == 4 else 8

    @property
    def block(self) -> int:
        """Weights that share a scale."""
        return self.format.group

    @property
    def n_blocks(self) -> int:
        """Blocks of a row; the last one may be filled up."""
        return -(-self.k // self.block)

    @property
    def block_nbytes(self) -> int:
        """Bytes of the codes of a block."""
        return self.block * self.bits // 8

    @property
    def n_groups(self) -> int:
        """Offsets of a row."""
        return -(-self.k // OFFSET_GROUP)

    def codes(self, plain: PlainTensor) -> Array:
        """Returns the codes of some rows."""
        middle = 1 << self.bits - 1
        codes = plain.codes.astype(np.uint8) + np.uint8(middle - _middle(self.format))
        n_more = self.n_blocks * self.block - self.k
        padded: Array = np.pad(codes, ((0, 0), (0, n_more)), constant_values=middle)
        return padded[:, 0::2] | padded[:, 1::2] << 4 if self.bits == 4 else padded

    def offsets(self, plain: PlainTensor) -> Array:
        """Returns the offsets of some rows [rows, n_groups]."""
        scale, minimum = plain.groups()
        assert minimum is not None
        return minimum + scale * np.float32(_middle(self.format))

    def chunks(self, source: WeightSource, names: Sequence[str]) -> dict[str, Chunks]:
        """Returns what yields codes, scales and offsets of the matrices ``names``, in order."""
        parts = partial(plain_rows, source, names)
        chunks: dict[str, Chunks] = {
            "codes": lambda: map(self.codes, parts()),
            "scales": lambda: (plain.groups()[0] for plain in parts()),
        }
        if self.format.has_minimum:
            chunks["offsets"] = lambda: iter([np.concatenate([*map(self.offsets, parts())]).T])
        return chunks


def _middle(fmt: QuantFormat) -> int:
    """Returns half of what the codes of ``fmt`` can be."""
    return 1 << fmt.bits - 1


def plain_rows(source: WeightSource, names: Sequence[str]) -> Iterator[PlainTensor]:
    """Yields the rows of matrices, some at a time."""
    shapes = matrices(source.config)
    for name in names:
        n, k = shapes[name]
        step = max(1, _CHUNK_WEIGHTS // k)
        for start in range(0, n, step):
            yield source.rows(name, start, min(start + step, n))
