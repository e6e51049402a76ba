"""The file that holds a graph's weights, written tensor by tensor.

Every tensor begins on a page, so that a mapped file serves any of them without a copy. Matrices
are read, packed and written a few rows at a time: memory does not grow with the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.kernels.cpu import PANEL, pack
from edgedec.models.families import weight_shapes
from edgedec.models.layer_inputs import LAYER_TABLE
from edgedec.models.rope import rope_names, rope_tables, ropes_of
from edgedec.models.weights import WeightSource, float_rows

WEIGHTS_FILE = "weights.bin"
"""File beside the graph that holds every weight."""

PAGE_BYTES = 4096
CHUNK_BYTES = 16 << 20
"""Size of a chunk of rows as float32; packing and dequantising hold a few times as much."""

BLOCK_BYTES = 2 << 20
"""What is written at once. Linux keeps a block that was written whole in one huge page, which saves
later passes a tenth of their time (`expect_whole_reads` in kernels/src/mapped_files.h)."""

Progress = Callable[[int, int, str], None]
"""Called with bytes written so far, bytes in all, and the tensor at hand."""

Chunks = Callable[[], Iterator[npt.NDArray[Any]]]
"""Yields the arrays that a tensor consists of, in their order."""


@dataclass(frozen=True)
class StoredTensor:
    """One weight as a graph reads it.

    is_packed: the packed matrix of its name, as bytes; else numbers: the matrix transposed (that of
    `layer_inputs` as it is), the vector, or the rotation table. dims: of what is stored; those of a
    matrix of experts begin with their number. dtype: of numbers, float32 or float16.
    """

    name: str
    is_packed: bool
    dims: tuple[int, ...]
    dtype: str = "float32"

    @property
    def nbytes(self) -> int:
        """Bytes of it."""
        width = 1 if self.is_packed else np.dtype(self.dtype).itemsize
        return width * int(np.prod(self.dims, dtype=np.int64))

    def stored(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns some of its ``values`` as they are stored."""
        return values if self.is_packed else values.astype(self.dtype, copy=False)


def offsets_of(tensors: Sequence[StoredTensor]) -> dict[str, int]:
    """Returns where each of ``tensors`` begins in their file."""
    offsets, end = {}, 0
    for tensor in tensors:
        offsets[tensor.name] = -(-end // PAGE_BYTES) * PAGE_BYTES
        end = offsets[tensor.name] + tensor.nbytes
    return offsets


def write_tensors(
    tensors: Sequence[StoredTensor],
    source: WeightSource,
    path: Path,
    on_progress: Progress | None = None,
    chunks: Mapping[str, Chunks] | None = None,
) -> None:
    """Writes ``tensors`` to the file ``path``, each where `offsets_of` says.

    chunks: of tensors that consist of something else than `StoredTensor` says, by name.

    Raises:
        OSError: the file cannot be written, for instance because the disk is full.
    """
    n_total, n_done = sum(tensor.nbytes for tensor in tensors), 0
    offsets, shapes = offsets_of(tensors), weight_shapes(source.config)
    with FileIO(path, "wb") as opened, _Blocks(opened) as file:
        for tensor in tensors:
            offset, arrays = offsets[tensor.name], (chunks or {}).get(tensor.name)
            file.fill_page()
            if arrays is None:
                writes = _write_tensor(file, offset, tensor, source, shapes)
            else:
                writes = _write_in_order(file, offset, map(tensor.stored, arrays()))
            for written in writes:
                n_done += written
                if on_progress:
                    on_progress(n_done, n_total, tensor.name)
            source.release()


def _write_tensor(
    file: _Blocks,
    offset: int,
    tensor: StoredTensor,
    source: WeightSource,
    shapes: Mapping[str, tuple[int, ...]],
) -> Iterator[int]:
    """Yields the bytes of each chunk written."""
    name = tensor.name
    for rope in ropes_of(source.config) if name not in shapes else ():
        if name in (names := rope_names(source.config, rope)):
            table = rope_tables(source.config, tensor.dims[0], rope)[names.index(name)]
            yield _write_at(file, offset, tensor.stored(table))
            return
    shape = shapes[name]
    if len(shape) != 2:
        yield _write_at(file, offset, tensor.stored(source.vector(name)))
        return
    if name == LAYER_TABLE and not tensor.is_packed:
        yield from _write_rows(file, offset, tensor, shape, source)
        return
    n_matrices = tensor.dims[0] if len(tensor.dims) == (2 if tensor.is_packed else 3) else 1
    n, k = shape[0] // n_matrices, shape[1]
    nbytes = tensor.nbytes // n_matrices
    write = _write_packed if tensor.is_packed else _write_transposed
    for i in range(n_matrices):
        yield from write(file, offset + i * nbytes, tensor, range(i * n, (i + 1) * n), k, source)


def _write_in_order(
    file: _Blocks, offset: int, arrays: Iterator[npt.NDArray[Any]]
) -> Iterator[int]:
    for array in arrays:
        yield (written := _write_at(file, offset, array))
        offset += written


def _write_packed(
    file: _Blocks, offset: int, tensor: StoredTensor, rows: range, k: int, source: WeightSource
) -> Iterator[int]:
    for chunk in _chunks(rows, k):
        plain = source.rows(tensor.name, chunk.start, chunk.stop)
        packed = pack(
            plain.format.index,
            plain.codes,
            plain.scale,
            plain.minimum,
            plain.sub_scale,
            plain.sub_minimum,
        )
        yield (written := _write_at(file, offset, packed))
        offset += written


def _write_rows(
    file: _Blocks, offset: int, tensor: StoredTensor, shape: tuple[int, ...], source: WeightSource
) -> Iterator[int]:
    for chunk in _chunks(range(shape[0]), shape[1]):
        numbers = tensor.stored(float_rows(source, tensor.name, chunk.start, chunk.stop))
        yield (written := _write_at(file, offset, numbers))
        offset += written


def _write_transposed(
    file: _Blocks, offset: int, tensor: StoredTensor, rows: range, k: int, source: WeightSource
) -> Iterator[int]:
    """Writes W.T [K, N]: rows of W are columns of the file, so each chunk goes to K places."""
    for chunk in _chunks(rows, k):
        numbers = tensor.stored(float_rows(source, tensor.name, chunk.start, chunk.stop))
        columns, width = np.ascontiguousarray(numbers.T), numbers.itemsize
        first = chunk.start - rows.start
        for row in range(k):
            _write_at(file, offset + width * (row * len(rows) + first), columns[row])
        yield columns.nbytes


def _chunks(rows: range, k: int) -> Iterator[range]:
    """Yields parts of ``rows`` that begin at multiples of the panel width, as packing needs."""
    step = max(PANEL, CHUNK_BYTES // (4 * k) // PANEL * PANEL)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def _write_at(file: _Blocks, offset: int, values: npt.NDArray[np.generic]) -> int:
    """Writes all of ``values`` at ``offset``."""
    view = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
    file.write(offset, view)
    return len(view)


class _Blocks:
    """A file that is written in whole blocks of `BLOCK_BYTES`, where places follow each other."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._start = 0
        self._waiting = bytearray()

    def __enter__(self) -> _Blocks:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._flush()

    def write(self, offset: int, values: memoryview) -> None:
        """Writes ``values`` at ``offset``, at once or with what follows."""
        if offset != self._end:
            self._flush()
            self._start = offset
        begin = 0
        while begin < len(values):
            room = BLOCK_BYTES - self._end % BLOCK_BYTES
            self._waiting += values[begin : begin + room]
            begin += room
            if self._end % BLOCK_BYTES == 0:
                self._flush()

    def fill_page(self) -> None:
        """Writes zeros up to where the next page begins, behind what was written last."""
        self.write(self._end, memoryview(bytes(-self._end % PAGE_BYTES)))

    @property
    def _end(self) -> int:
        return self._start + len(self._waiting)

    def _flush(self) -> None:
        """Writes what waits; a single call may write less."""
        while self._waiting:
            self._file.seek(self._start)
            written = self._file.write(self._waiting)
            del self._waiting[:written]
            self._start += written
