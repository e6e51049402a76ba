"""Weights as Core ML keeps them: blocks of 4 or 8 bits with float16 scales, or float16.

All functions of a package share them: a constant of the same identifier is written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from coremltools.converters.mil import Builder
from coremltools.converters.mil.mil import Var, types

from edgedec.export.to_onnx.nbits import BlockLayout
from edgedec.models.families import matrices
from edgedec.models.quant import PlainTensor, QuantFormat
from edgedec.models.rope import Rope, rope_tables
from edgedec.models.weights import WeightSource

Array = npt.NDArray[Any]


class Weights:
    """The weights of ``source`` as constants of whatever function is being built.

    formats: of every matrix. context: positions of the rotation tables.
    """

    def __init__(
        self, source: WeightSource, formats: Mapping[str, QuantFormat], context: int
    ) -> None:
        self._source = source
        self._formats = formats
        self._context = context
        self._arrays: dict[str, Array] = {}

    def matrix(self, name: str) -> Var:
        """Returns the matrix [N, K], without the offsets of its groups."""
        codes, scales = self._read(name)
        if scales is None:
            return self._const(name, codes)
        return Builder.constexpr_blockwise_shift_scale(
            data=self._const(f"{name}.codes", codes),
            scale=self._const(f"{name}.scales", scales),
            name=identifier(name),
        )

    def offsets(self, name: str) -> Var | None:
        """Returns what is added to the groups of a matrix [N, K / 32], if anything."""
        if self._read(name)[1] is None or not self._formats[name].has_minimum:
            return None
        return self._const(f"{name}.offsets", self._arrays[f"{name}.offsets"])

    def vector(self, name: str) -> Var:
        """Returns a norm's weight, or a bias, as float16."""
        if name not in self._arrays:
            self._arrays[name] = _float16(self._source.vector(name))
        return self._const(name, self._arrays[name])

    def rope(self, rope: Rope) -> tuple[Var, Var]:
        """Returns cosines and sines [context, head_size / 2]."""
        names = [f"rope.{rope.theta!r}.{int(rope.is_scaled)}.{part}" for part in ("cos", "sin")]
        if names[0] not in self._arrays:
            tables = rope_tables(self._source.config, self._context, rope)
            self._arrays |= dict(zip(names, map(_float16, tables), strict=True))
        cos, sin = (self._const(name, self._arrays[name]) for name in names)
        return cos, sin

    def _read(self, name: str) -> tuple[Array, Array | None]:
        """Returns codes and scales of a matrix, or what it holds and None."""
        if name not in self._arrays:
            n, k = matrices(self._source.config)[name]
            plain = self._source.rows(name, 0, n)
            fmt = self._formats[name]
            if fmt.is_float or k % fmt.group:
                self._arrays[name] = _float16(plain.dequantize())
            else:
                layout = BlockLayout(fmt, n, k)
                self._arrays[name] = _signed_codes(plain, layout.bits)
                self._arrays[f"{name}.scales"] = _float16(plain.groups()[0])
                if fmt.has_minimum:
                    self._arrays[f"{name}.offsets"] = _float16(layout.offsets(plain))
            self._source.release()
        return self._arrays[name], self._arrays.get(f"{name}.scales")

    def _const(self, name: str, array: Array) -> Var:
        const = Builder.const(val=array, name=identifier(name))
        const.op.weight_id = name
        return const


def identifier(name: str) -> str:
    """Returns ``name`` as Core ML takes names: letters, digits and underscores."""
    return "".join(c if c.isalnum() else "_" for c in name)


def _signed_codes(plain: PlainTensor, bits: int) -> Array:
    """Returns codes around zero: what they are less half of what they can be."""
    codes = plain.codes.astype(np.int16) - (1 << plain.format.bits - 1)
    return codes.astype(types.np_int4_dtype if bits == 4 else np.int8)


def _float16(values: Array) -> npt.NDArray[np.float16]:
    with np.errstate(over="ignore"):  # infinities fail verification
        return values.astype(np.float16)
