"""Parts of files that a download left unwritten: zeros from the middle of a row on.

Files are often allocated first. Where the download was interrupted, they hold zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from edgedec.export.checkpoints.mapped_file import MappedFile

_PAGE = 4096  # bytes; shorter runs are looked for at the end of a file alone
_CHUNK = 1 << 24
_MIN_RUN = 64
"""Bytes of a run; and how near to a row's beginning a run may begin or end in a healthy file, whose
values may hold bytes of zeros."""


@dataclass(frozen=True)
class StoredBytes:
    """Where a tensor lies in its file. row_bytes: of a row of a matrix, of all of a vector."""

    file: MappedFile
    name: str
    offset: int
    n_bytes: int
    row_bytes: int


def find_unwritten(tensors: Iterable[StoredBytes]) -> tuple[str, ...]:
    """Returns a line for each tensor in which zeros begin or end in the middle of a row."""
    by_file: dict[int, list[StoredBytes]] = {}
    for tensor in tensors:
        by_file.setdefault(id(tensor.file), []).append(tensor)
    return tuple(line for stored in by_file.values() for line in _lines(stored))


def _lines(stored: list[StoredBytes]) -> Iterator[str]:
    file = stored[0].file
    end = max(tensor.offset + tensor.n_bytes for tensor in stored)
    start = min(tensor.offset for tensor in stored)
    for first, last in [*_long_runs(file, start, end), *_last_run(file, start, end)]:
        for tensor in stored:
            if _is_cut(tensor, first, last, is_end=last == end):
                yield (
                    f"{file.path.name}: tensor {tensor.name} is zeros in parts of its rows, which "
                    f"lie from byte {first} to byte {last} of the file"
                )
    file.release()


def _is_cut(tensor: StoredBytes, first: int, last: int, is_end: bool) -> bool:
    """Returns whether zeros in bytes [first, last) begin or end within a row of ``tensor``."""
    stop = tensor.offset + tensor.n_bytes
    is_vector = tensor.row_bytes == tensor.n_bytes
    if min(last, stop) - max(first, tensor.offset) < _MIN_RUN or (is_vector and not is_end):
        return False
    edges = [edge for edge in (first, last) if tensor.offset < edge < stop]
    places = [(edge - tensor.offset) % tensor.row_bytes for edge in edges]
    return any(min(place, tensor.row_bytes - place) > _MIN_RUN for place in places)


def _long_runs(file: MappedFile, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields runs of zeros that hold a page or more, and do not reach ``end``."""
    first = last = -1
    for chunk in range(start, end, _CHUNK):
        n = min(_CHUNK, end - chunk) // _PAGE * _PAGE
        pages = file.view(chunk, n).view(np.uint64).reshape(-1, _PAGE // 8)
        for page in np.flatnonzero(~pages.any(axis=1)).tolist():
            at = chunk + page * _PAGE
            if at != last:
                yield from _whole_run(file, first, last, start, end)
                first = at
            last = at + _PAGE
        file.release()
    yield from _whole_run(file, first, last, start, end)


def _whole_run(
    file: MappedFile, first: int, last: int, start: int, end: int
) -> Iterator[tuple[int, int]]:
    """Yields the run that the pages [first, last) lie in, if there are some."""
    if first < 0:
        return
    before = np.flatnonzero(file.view(max(start, first - _PAGE), min(_PAGE, first - start)))
    behind = np.flatnonzero(file.view(last, min(_PAGE, end - last)))
    if len(behind):
        whole = first - (min(_PAGE, first - start) - 1 - int(before[-1]) if len(before) else 0)
        yield whole, last + int(behind[0])


def _last_run(file: MappedFile, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields the run of zeros that reaches ``end``, if there is one."""
    for stop in range(end, start, -_CHUNK):
        first = max(start, stop - _CHUNK)
        if len(written := np.flatnonzero(file.view(first, stop - first))):
            if end - (first + int(written[-1]) + 1) >= _MIN_RUN:
                yield first + int(written[-1]) + 1, end
            return
