"""Safetensors files: a JSON header and raw little-endian tensors.

Source: huggingface/safetensors ``README.md`` (format, Apache-2.0).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.mapped_file import MappedFile
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.quant import FORMATS, QuantFormat

MAX_HEADER_BYTES = 100_000_000
_TYPES: dict[str, tuple[QuantFormat, np.dtype[Any]]] = {
    "F32": (FORMATS["f32"], np.dtype("<f4")),
    "F16": (FORMATS["f16"], np.dtype("<f2")),
    "BF16": (FORMATS["bf16"], np.dtype("<u2")),
    "F64": (FORMATS["f32"], np.dtype("<f8")),
}
_RAW_TYPES: dict[str, tuple[QuantFormat, np.dtype[Any]]] = {
    "F8_E4M3": (FORMATS["f32"], np.dtype("u1")),
    "F8_E5M2": (FORMATS["f32"], np.dtype("u1")),
    "I32": (FORMATS["f32"], np.dtype("<i4")),
    "U8": (FORMATS["f32"], np.dtype("u1")),
    "I8": (FORMATS["f32"], np.dtype("i1")),
    "U32": (FORMATS["f32"], np.dtype("<u4")),
    "I64": (FORMATS["f32"], np.dtype("<i8")),
    "BOOL": (FORMATS["f32"], np.dtype("u1")),
}
"""Types of the parts of quantised matrices; their format is that of what they are parts of."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file; its bytes are mapped, not read. type: as the file calls it."""

    file: MappedFile
    type: str
    format: QuantFormat
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def is_raw(self) -> bool:
        """Whether the values are codes that need others to become weights."""
        return self.type in _RAW_TYPES

    @property
    def n_bytes(self) -> int:
        """Size of the values in the file."""
        return math.prod(self.shape) * self.dtype.itemsize

    def values(self) -> npt.NDArray[Any]:
        """Returns the values in their stored type, without a copy (bfloat16 as its bits).

        Of float64 they are rounded to float32.
        """
        stored = self.file.view(self.offset, self.n_bytes).view(self.dtype).reshape(self.shape)
        return stored.astype(np.float32) if self.type == "F64" else stored


def read_tensors(
    path: Path, is_wanted: Callable[[str], bool] = lambda name: True
) -> dict[str, StoredTensor]:
    """Returns the tensors of one file by name. Of those not wanted nothing is looked at.

    Raises:
        CheckpointError: the file is truncated or contradicts itself.
        UnsupportedModelError: a tensor has a type without reader; named.
    """
    file = MappedFile(path)
    header, data_start = _read_header(file)
    header.pop("__metadata__", None)
    entries = {name: entry for name, entry in header.items() if is_wanted(name)}
    return {name: _read_tensor(file, name, entry, data_start) for name, entry in entries.items()}


def _read_header(file: MappedFile) -> tuple[dict[str, Any], int]:
    name = file.path.name
    if file.n_bytes < 8:
        raise CheckpointError(f"{name}: has {file.n_bytes} bytes, too few for a safetensors file")
    (n_bytes,) = struct.unpack_from("<Q", file.data)
    if n_bytes > min(file.n_bytes - 8, MAX_HEADER_BYTES):
        raise CheckpointError(
            f"{name}: header of {n_bytes} bytes does not fit in a file of {file.n_bytes}; the "
            f"file is truncated or not a safetensors file, fetch it again"
        )
    try:
        header = json.loads(file.data[8 : 8 + n_bytes])
    except (ValueError, RecursionError):
        raise CheckpointError(f"{name}: the header is not JSON; fetch the file again") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{name}: the header is not a table; fetch the file again")
    return header, 8 + n_bytes


def _read_tensor(file: MappedFile, name: str, entry: Any, data_start: int) -> StoredTensor:
    where = f"{file.path.name}: tensor {name if name.isprintable() else repr(name)}"
    shape, offsets = (
        (_naturals(entry.get(key)) for key in ("shape", "data_offsets"))
        if isinstance(entry, dict)
        else (None, None)
    )
    if shape is None or offsets is None or len(offsets) != 2:
        raise CheckpointError(f"{where}: shape or data_offsets are not lists of whole numbers")
    types = {**_TYPES, **_RAW_TYPES}
    if not isinstance(entry.get("dtype"), str) or entry["dtype"] not in types:
        raise UnsupportedModelError(
            f"{where} has type {str(entry.get('dtype'))[:20]!r}, supported: {', '.join(types)}"
        )
    fmt, dtype = types[entry["dtype"]]
    start, stop = offsets
    n_bytes = math.prod(shape) * dtype.itemsize
    if stop - start != n_bytes or data_start + stop > file.n_bytes:
        raise CheckpointError(
            f"{where} of shape {list(shape)} needs {n_bytes} bytes, but lies at [{start}, {stop}) "
            f"of {file.n_bytes - data_start}; the file is truncated or damaged, fetch it again"
        )
    return StoredTensor(file, entry["dtype"], fmt, dtype, shape, data_start + start)


def _naturals(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value):
        return tuple(value)
    return None
