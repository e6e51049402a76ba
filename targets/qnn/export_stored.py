"""Weights as Qualcomm's compiler takes them, in a file that all graphs of a model refer to.

Symmetric blocks of 32 stay blocks of 4-bit codes; every other matrix becomes 8-bit codes with one
scale for each output channel. Vectors and tables become 16-bit codes with one scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from edgedec.export.to_onnx.graph import place
from edgedec.export.to_onnx.messages import TensorProto
from edgedec.models.families import matrices
from edgedec.models.quant import QuantFormat
from edgedec.models.rope import Rope, rope_tables
from edgedec.models.weights import WeightSource

Array = npt.NDArray[Any]

WEIGHTS_NAME = "weights.tmp"

FEW_BITS = "q4_0"
"""The format whose matrices stay what they are."""

_ELEMENTS = {
    "int4": TensorProto.INT4,
    "int8": TensorProto.INT8,
    "uint16": TensorProto.UINT16,
    "float32": TensorProto.FLOAT,
}


class Codes(NamedTuple):
    """Names of what a DequantizeLinear reads, and its attributes."""

    inputs: tuple[str, str, str]
    attributes: dict[str, Any]


class StoredWeights:
    """The weights of ``source``, written to ``path`` when a graph first asks for them.

    formats: of every matrix. context: positions of the rotation tables. has_blocks: whether the
    device multiplies with blocks of 4 bits; without, they become 8 bits, too.
    """

    def __init__(
        self,
        source: WeightSource,
        formats: Mapping[str, QuantFormat],
        context: int,
        path: Path,
        has_blocks: bool = True,
    ) -> None:
        self._source, self._formats, self._context = source, formats, context
        self._has_blocks = has_blocks
        self._shapes = matrices(source.config)
        self._path = path
        self._file: BinaryIO = path.open("wb")
        self._codes: dict[str, Codes] = {}
        self._tensors: dict[str, TensorProto] = {}

    def flush(self) -> None:
        """Writes what is held back, so that graphs can be opened."""
        self._file.flush()

    def close(self) -> None:
        """Ends the file."""
        self._file.close()

    def tensors(self, names: set[str]) -> list[TensorProto]:
        """Returns the tensors called so, among those that are stored."""
        return [tensor for name, tensor in self._tensors.items() if name in names]

    def matrix(self, name: str) -> Codes:
        """Returns the matrix ``name`` transposed [K, N]."""
        return self._once(name, lambda: self._write_matrix(name))

    def table(self, name: str) -> Codes:
        """Returns the matrix ``name`` [N, K] as rows to be gathered, with one scale for all."""
        return self._once(f"{name}.table", lambda: self._write_table(name))

    def vector(self, name: str) -> Codes:
        """Returns a norm's weight, or a bias."""
        return self._once(name, lambda: self._write_wide(name, self._source.vector(name)))

    def number(self, value: float) -> Codes:
        """Returns one number."""
        name = f"number.{value!r}"
        return self._once(name, lambda: self._write_wide(name, np.array([value], np.float32)))

    def rope(self, rope: Rope) -> tuple[Codes, Codes]:
        """Returns cosines, and sines with the sign of their channel [context, head_size]."""
        cos, sin = rope_tables(self._source.config, self._context, rope)
        tables = np.hstack([cos, cos]), np.hstack([-sin, sin])
        names = [f"rope.{rope.theta!r}.{int(rope.is_scaled)}.{part}" for part in ("cos", "sin")]
        first, second = (
            self._once(name, partial(self._write_wide, name, table))
            for name, table in zip(names, tables, strict=True)
        )
        return first, second

    def _once(self, name: str, write: Callable[[], Codes]) -> Codes:
        if name not in self._codes:
            self._codes[name] = write()
            self._source.release()
        return self._codes[name]

    def _write_matrix(self, name: str) -> Codes:
        n, k = self._shapes[name]
        plain = self._source.rows(name, 0, n)
        fmt = self._formats[name]
        if self._has_blocks and fmt.name == FEW_BITS and k % fmt.group == 0:
            codes = plain.codes.T.astype(np.int8) - np.int8(fmt.zero_point)
            scales = plain.groups()[0].T.astype(np.float32)
            zeros = np.zeros(scales.shape, np.int8)
            return self._write(name, codes, scales, zeros, {"axis": 0, "block_size": fmt.group}, 4)
        values = plain.dequantize()
        scales = np.maximum(np.abs(values).max(axis=1), 1e-8) / np.float32(127)
        codes = np.rint(values / scales[:, None]).astype(np.int8).T
        return self._write(name, codes, scales, np.zeros(n, np.int8), {"axis": 1})

    def _write_table(self, name: str) -> Codes:
        n, _ = self._shapes[name]
        return self._write_wide(f"{name}.table", self._source.rows(name, 0, n).dequantize())

    def _write_wide(self, name: str, values: Array) -> Codes:
        low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
        scale, zero = wide_scale(low, high)
        codes = np.clip(np.rint(values / scale) + zero, 0, 65535).astype(np.uint16)
        return self._write(name, codes, scale, zero, {})

    def _write(
        self,
        name: str,
        codes: Array,
        scale: Any,
        zero: Any,
        attributes: dict[str, int],
        bits: int = 0,
    ) -> Codes:
        parts = (f"{name}.codes", f"{name}.scale", f"{name}.zero")
        self._store(parts[0], codes, bits)
        self._store(parts[1], np.asarray(scale, np.float32))
        self._store(parts[2], np.asarray(zero), bits)
        return Codes(parts, attributes)

    def _store(self, name: str, values: Array, bits: int = 0) -> None:
        kind = "int4" if bits == 4 else values.dtype.name
        tensor = TensorProto(name=name, data_type=_ELEMENTS[kind], dims=values.shape)
        raw = np.ascontiguousarray(values)
        if bits == 4:
            flat = (raw.reshape(-1) & 15).astype(np.uint8)
            flat = np.append(flat, np.zeros(flat.size % 2, np.uint8))
            raw = flat[0::2] | flat[1::2] << 4
        data = raw.tobytes()
        if len(data) < 1024:
            tensor.raw_data = data
        else:
            offset = self._file.tell()
            self._file.write(data)
            tensor.data_location = TensorProto.EXTERNAL
            place(
                tensor,
                {"location": self._path.name, "offset": str(offset), "length": str(len(data))},
            )
        self._tensors[name] = tensor


def wide_scale(low: float, high: float) -> tuple[np.float32, np.uint16]:
    """Returns scale and zero point of 16-bit codes for numbers from ``low`` to ``high``.

    Zero is always one of them.
    """
    scale = np.float32(max(high - low, 1e-6) / 65535)
    return scale, np.uint16(np.clip(np.rint(-low / scale), 0, 65535))
