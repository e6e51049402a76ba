"""GGUF header: metadata and tensor records, with nothing in the file trusted.

Every count and length is checked against the bytes that are left before anything is allocated
or looped over.

Source: ggml-org/ggml ``docs/gguf.md`` (MIT).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.gguf_codes import TENSOR_TYPES, UNREAD_TYPES, TensorType
from edgedec.export.checkpoints.mapped_file import MappedFile
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.file_kinds import kind_of_bytes
from edgedec.models.installation import install_command

MAX_STRING_BYTES = 1 << 24
MAX_STRINGS = 1 << 22
MAX_NAME_BYTES = 256
MAX_DIMENSIONS = 4
MIN_PAIR_BYTES = 8 + 4 + 1
MIN_RECORD_BYTES = 8 + 1 + 4 + 8 + 4 + 8
_LENGTH = struct.Struct("<Q")
_SCALARS = {
    0: struct.Struct("<B"), 1: struct.Struct("<b"), 2: struct.Struct("<H"),
    3: struct.Struct("<h"), 4: struct.Struct("<I"), 5: struct.Struct("<i"),
    6: struct.Struct("<f"), 10: struct.Struct("<Q"), 11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9


@dataclass(frozen=True)
class TensorRecord:
    """One tensor: its shape (outermost dimension first) and where its bytes lie in which file."""

    file: MappedFile
    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    n_bytes: int

    def rows(self) -> npt.NDArray[np.uint8]:
        """Returns the rows as bytes [..., bytes of a row], mapped; a vector is one row."""
        lead = self.shape[:-1] or (1,)
        return self.file.view(self.offset, self.n_bytes).reshape(*lead, -1)


@dataclass(frozen=True)
class GgufHeader:
    """Metadata values are int, float, bool, str, list[str], or a one-dimensional array."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorRecord]


def read_header(file: MappedFile) -> GgufHeader:
    """Returns the header of a GGUF file of version 2 or 3, little endian.

    Raises:
        CheckpointError: the file is not a GGUF file, truncated, or contradicts itself.
        UnsupportedModelError: another version or byte order, or a tensor type without reader.
    """
    cursor = _Cursor(file)
    _check_magic(cursor)
    n_tensors = cursor.count("tensor count", MIN_RECORD_BYTES, reserved=8)
    n_pairs = cursor.count("metadata count", MIN_PAIR_BYTES)
    metadata: dict[str, Any] = {}
    for _ in range(n_pairs):
        key = cursor.name("metadata key")
        if key in metadata:
            raise cursor.error(f"metadata key {key} appears twice")
        metadata[key] = _read_value(cursor, key)
    records = [_read_record(cursor) for _ in range(n_tensors)]
    data_start = _data_start(cursor, metadata)
    return GgufHeader(metadata, _place(cursor, records, data_start, _alignment(cursor, metadata)))


_REMARKS = (
    "general.author", "general.description", "general.license", "general.name", "general.url",
    "general.organization", "general.basename", "general.finetune", "general.source",
    "general.base_model", "general.quantized_by", "general.tags", "general.comment",
)  # fmt: skip
"""Keys of texts for people, whose encoding changes nothing."""


class _Cursor:
    """A position in the file that never leaves it."""

    def __init__(self, file: MappedFile) -> None:
        self.file, self.data, self.size, self.position = file, file.data, file.n_bytes, 0
        self.file_name = file.path.name

    def error(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self.file_name}: {message}")

    def take(self, n_bytes: int, what: str) -> int:
        """Returns the position and moves past ``n_bytes``."""
        start = self.position
        if n_bytes > self.size - start:
            raise self.error(
                f"{what} at byte {start} needs {n_bytes} bytes, {self.size - start} are left; "
                f"the file is truncated or damaged, fetch it again"
            )
        self.position = start + n_bytes
        return start

    def scalar(self, layout: struct.Struct, what: str) -> Any:
        return layout.unpack_from(self.data, self.take(layout.size, what))[0]

    def count(self, what: str, min_bytes: int, reserved: int = 0) -> int:
        """Returns a count of things that need at least ``min_bytes`` each."""
        n: int = self.scalar(_LENGTH, what)
        fits = max(self.size - self.position - reserved, 0) // min_bytes
        if n > fits:
            raise self.error(f"{what} is {n}, but only {fits} would fit in the rest of the file")
        return n

    def string(self, what: str, max_bytes: int = MAX_STRING_BYTES, is_remark: bool = False) -> str:
        n: int = self.scalar(_LENGTH, f"length of {what}")
        if n > max_bytes:
            raise self.error(f"{what} has {n} bytes, expected at most {max_bytes}")
        start = self.take(n, what)
        text = self.data[start : start + n]
        if is_remark:
            return bytes(text).decode(errors="replace")
        return self._decode(text, what)

    def name(self, what: str) -> str:
        name = self.string(what, MAX_NAME_BYTES)
        if not name or not name.isprintable():
            raise self.error(f"{what} {name[:60]!r} is not a printable name")
        return name

    def strings(self, n: int, what: str) -> list[str]:
        if n > MAX_STRINGS:
            raise self.error(f"{what} has {n} strings, expected at most {MAX_STRINGS}")
        data, size, position = self.data, self.size, self.position
        read, width = _LENGTH.unpack_from, _LENGTH.size
        strings: list[bytes] = []
        # The body is inlined: tokens and merges come in hundreds of thousands.
        for _ in range(n):
            start = position + width
            if start > size or (length := read(data, position)[0]) > size - start:
                raise self.error(f"{what} is cut off after {len(strings)} of {n} strings")
            if length > MAX_STRING_BYTES:
                raise self.error(f"{what} holds a string of {length} bytes")
            position = start + length
            strings.append(data[start:position])
        self.position = position
        return [self._decode(text, what) for text in strings]

    def _decode(self, text: bytes, what: str) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise self.error(
                f"{what} is not UTF-8 text: {text[:30]!r}; convert the model again, with this text "
                "in UTF-8"
            ) from None


def _check_magic(cursor: _Cursor) -> None:
    magic = cursor.data[: min(4, cursor.size)]
    if magic != b"GGUF":
        kind = kind_of_bytes(bytes(cursor.data[: min(512, cursor.size)]))
        more = f" but {kind}" if kind else ""
        raise cursor.error(
            f"begins with {magic!r}, expected b'GGUF'; this is not a GGUF file{more}"
        )
    cursor.take(4, "magic")
    version: int = cursor.scalar(_SCALARS[4], "version")
    if version in (2, 3):
        return
    if version & 0xFFFF == 0:
        raise UnsupportedModelError(
            f"{cursor.file_name}: is a big-endian GGUF file, expected little endian; "
            f"convert it with gguf-convert-endian"
        )
    raise UnsupportedModelError(
        f"{cursor.file_name}: is GGUF version {version}, expected 2 or 3; convert the model again"
    )


def _read_value(cursor: _Cursor, key: str) -> Any:
    what = f"metadata {key}"
    kind: int = cursor.scalar(_SCALARS[4], what)
    if kind == _STRING:
        return cursor.string(what, is_remark=key.startswith(_REMARKS))
    if kind == _ARRAY:
        return _read_array(cursor, what)
    if kind == _BOOL:
        value: int = cursor.scalar(_SCALARS[0], what)
        if value > 1:
            raise cursor.error(f"{what} is a boolean of value {value}, expected 0 or 1")
        return bool(value)
    if kind in _SCALARS:
        return cursor.scalar(_SCALARS[kind], what)
    raise cursor.error(f"{what} has unknown value type {kind}, expected 0 to 12")


def _read_array(cursor: _Cursor, what: str) -> Any:
    kind: int = cursor.scalar(_SCALARS[4], what)
    if kind == _STRING:
        return cursor.strings(cursor.count(f"length of {what}", _LENGTH.size), what)
    if kind != _BOOL and kind not in _SCALARS:
        raise cursor.error(f"{what} is an array of value type {kind}, expected plain values")
    dtype = np.dtype("u1" if kind == _BOOL else _SCALARS[kind].format)
    n = cursor.count(f"length of {what}", dtype.itemsize)
    start = cursor.take(n * dtype.itemsize, what)
    return np.frombuffer(cursor.data[start : cursor.position], dtype)


def _read_record(cursor: _Cursor) -> TensorRecord:
    """Returns a record whose offset still counts from the start of the data."""
    name = cursor.name("tensor name")
    n_dimensions: int = cursor.scalar(_SCALARS[4], f"tensor {name}")
    if not 1 <= n_dimensions <= MAX_DIMENSIONS:
        raise cursor.error(
            f"tensor {name} has {n_dimensions} dimensions, expected 1 to {MAX_DIMENSIONS}"
        )
    start = cursor.take(8 * n_dimensions, f"shape of tensor {name}")
    inner_first = struct.unpack_from(f"<{n_dimensions}Q", cursor.data, start)
    kind: int = cursor.scalar(_SCALARS[4], f"type of tensor {name}")
    offset: int = cursor.scalar(_LENGTH, f"offset of tensor {name}")
    shape = tuple(reversed(inner_first))
    if kind not in TENSOR_TYPES:
        raise UnsupportedModelError(
            f"{cursor.file_name}: tensor {name} has type {UNREAD_TYPES.get(kind, kind)}, "
            f"supported: {', '.join(row.name for row in TENSOR_TYPES.values())}; take the model "
            f"in another quantisation, such as Q4_K_M"
        )
    row = TENSOR_TYPES[kind]
    if row.needs_library and find_spec("gguf") is None:
        raise UnsupportedModelError(
            f"{cursor.file_name}: tensor {name} has type {row.name}, which the package gguf reads: "
            f"{install_command('gguf')}"
        )
    if 0 in shape or shape[-1] % row.n_weights:
        raise cursor.error(
            f"tensor {name} has shape {list(shape)}, expected positive dimensions and rows of a "
            f"multiple of {row.n_weights} for type {row.name}"
        )
    n_bytes = math.prod(shape) // row.n_weights * row.n_bytes
    if n_bytes > cursor.size:
        raise cursor.error(
            f"tensor {name} of shape {list(shape)} needs {n_bytes} bytes, the file has "
            f"{cursor.size}; it is truncated or damaged, fetch it again"
        )
    return TensorRecord(cursor.file, name, shape, row, offset, n_bytes)


def _alignment(cursor: _Cursor, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", 32)
    is_power = isinstance(alignment, int) and alignment > 0 and not alignment & (alignment - 1)
    if not is_power or not 8 <= alignment <= 1 << 20:
        raise cursor.error(
            f"general.alignment is {str(alignment)[:40]!r}, expected a power of two from 8"
        )
    return int(alignment)


def _data_start(cursor: _Cursor, metadata: dict[str, Any]) -> int:
    alignment = _alignment(cursor, metadata)
    return -(-cursor.position // alignment) * alignment


def _place(
    cursor: _Cursor, records: list[TensorRecord], data_start: int, alignment: int
) -> dict[str, TensorRecord]:
    """Returns the records by name, with offsets from the start of the file."""
    placed: dict[str, TensorRecord] = {}
    end = 0
    for record in records:
        name, start = record.name, data_start + record.offset
        if name in placed:
            raise cursor.error(f"tensor {name} appears twice")
        if record.offset != end:
            raise cursor.error(
                f"tensor {name} begins at {record.offset}, expected {end}, where the one before it "
                f"ends; the file is damaged, or from a fork of llama.cpp with other types: fetch "
                f"it again, or take another quantisation"
            )
        end = -(-(end + record.n_bytes) // alignment) * alignment
        if start + record.n_bytes > cursor.size:
            raise cursor.error(
                f"tensor {name} ends at byte {start + record.n_bytes}, the file has "
                f"{cursor.size}; it is truncated, fetch it again"
            )
        placed[name] = replace(record, offset=start)
    return placed
