"""Which files an ONNX graph reads its tensors from, without the onnx package.

ONNX Runtime keeps such files inside the graph's folder, but knows no list of them. Only the fields
that lead to tensors are followed; whatever a tensor holds inside the graph is skipped unread.

Source: onnx ``onnx.proto3`` (field numbers), Apache-2.0; protobuf encoding specification.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from edgedec.models.errors import BundleError

_CHILDREN: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {
        5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse",
    },
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "external"},
}  # fmt: skip
"""Message -> number of a field -> the message that the field holds."""

_KEY = b"location"
_FIXED_BYTES = {1: 8, 5: 4}
_VARINT, _BYTES = 0, 2
_MAPPED_BYTES = 32 << 20
Buffer = bytes | mmap.mmap


def locations(path: Path) -> set[str]:
    """Returns the files that tensors of the graph at ``path`` name, as they name them.

    Raises:
        BundleError: The graph cannot be read, or is none.
    """
    try:
        with path.open("rb") as file:
            if path.stat().st_size < _MAPPED_BYTES:
                return locations_in(file.read())  # quicker to look at, byte by byte
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return locations_in(data)
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise BundleError(f"{path} is not an ONNX graph ({error}): export the model") from None


def locations_in(data: Buffer) -> set[str]:
    """As `locations`, of a graph in memory. Raises a ValueError if it is none."""
    paths: set[str] = set()
    waiting = [("model", 0, len(data))]
    while waiting:
        kind, start, stop = waiting.pop()
        if kind == "external":
            entry = dict(_texts(data, start, stop))
            if entry.get(1) == _KEY.decode():
                paths.add(entry.get(2, ""))
            continue
        children = _CHILDREN[kind]
        for number, begin, end in _fields(data, start, stop):
            # However it is encoded, a message that names a file holds these bytes.
            if number in children and data.find(_KEY, begin, end) >= 0:
                waiting.append((children[number], begin, end))
    return paths


def _texts(data: Buffer, start: int, stop: int) -> Iterator[tuple[int, str]]:
    for number, begin, end in _fields(data, start, stop):
        yield number, data[begin:end].decode("utf-8")


def _fields(data: Buffer, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yields number, begin and end of each field of bytes."""
    while start < stop:
        key = data[start]
        start += 1
        if key >= 0x80:
            key, start = _varint(data, start - 1, stop)
        wire = key & 7
        if wire == _VARINT:
            _, start = _varint(data, start, stop)
        elif wire == _BYTES:
            size = data[start] if start < stop else 0x80
            start += 1
            if size >= 0x80:
                size, start = _varint(data, start - 1, stop)
            yield key >> 3, start, min(start + size, stop)
            start += size
        elif wire in _FIXED_BYTES:
            start += _FIXED_BYTES[wire]
        else:
            raise ValueError(f"a field of kind {wire}")
    if start != stop:
        raise ValueError("a field goes beyond its message")


def _varint(data: Buffer, start: int, stop: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if start >= stop:
            raise ValueError("truncated")
        byte = data[start]
        start += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, start
    raise ValueError("a number of more than ten bytes")
