"""The file that holds a graph's weights, written tensor by tensor.

Every tensor begins on a page, so that a mapped file serves any of them without a copy. Matrices
are read, packed and written a few rows at a time: memory does not grow with the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from edgedec.export.to_onnx.emit import rope_names
from edgedec.export.to_onnx.graph import WEIGHTS_FILE, place
from edgedec.kernels import PANEL, pack
from edgedec.models.config import ModelConfig
from edgedec.models.families import weight_shapes
from edgedec.models.rope import Rope, rope_of, rope_tables
from edgedec.models.weights import WeightSource, float_rows

PAGE_BYTES = 4096
CHUNK_BYTES = 16 << 20
"""Size of a chunk of rows as float32; packing and dequantising hold a few times as much."""

Progress = Callable[[int, int, str], None]
"""Called with bytes written so far, bytes in all, and the tensor at hand."""


def write_weights(
    model: onnx.ModelProto,
    source: WeightSource,
    folder: Path,
    on_progress: Progress | None = None,
) -> Path:
    """Writes the weights ``model`` refers to and sets their places in it.

    uint8 initializers receive the packed matrix of their name, float ones the matrix transposed,
    the vector, or the rotation table. Matrices of experts are written one by one, packed
    [experts, bytes] or transposed [experts, K, N].

    Returns:
        The file written.

    Raises:
        OSError: the file cannot be written, for instance because the disk is full.
    """
    tensors = [t for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    n_total = sum(_tensor_nbytes(tensor) for tensor in tensors)
    n_done = offset = 0
    path = folder / WEIGHTS_FILE
    with FileIO(path, "wb") as file:
        for tensor in tensors:
            offset = -(-offset // PAGE_BYTES) * PAGE_BYTES
            nbytes = _tensor_nbytes(tensor)
            for written in _write_tensor(file, offset, tensor, source):
                n_done += written
                if on_progress:
                    on_progress(n_done, n_total, tensor.name)
            source.release()
            place(
                tensor,
                {"location": WEIGHTS_FILE, "offset": str(offset), "length": str(nbytes)},
            )
            offset += nbytes
    return path


def _tensor_nbytes(tensor: onnx.TensorProto) -> int:
    size = 1 if tensor.data_type == TensorProto.UINT8 else 4
    return size * int(np.prod(tensor.dims, dtype=np.int64))


def _write_tensor(
    file: FileIO, offset: int, tensor: onnx.TensorProto, source: WeightSource
) -> Iterator[int]:
    """Yields the bytes of each chunk written."""
    name = tensor.name
    rope = _rope_tables(source.config)
    if name in rope:
        of_layer, part = rope[name]
        table = rope_tables(source.config, tensor.dims[0], of_layer)[part]
        yield _write_at(file, offset, table)
        return
    shape = weight_shapes(source.config)[name]
    if len(shape) == 1:
        yield _write_at(file, offset, source.vector(name).astype(np.float32, copy=False))
        return
    is_packed = tensor.data_type == TensorProto.UINT8
    n_matrices = tensor.dims[0] if len(tensor.dims) == (2 if is_packed else 3) else 1
    n, k = shape[0] // n_matrices, shape[1]
    nbytes = _tensor_nbytes(tensor) // n_matrices
    write = _write_packed if is_packed else _write_transposed
    for i in range(n_matrices):
        yield from write(file, offset + i * nbytes, name, range(i * n, (i + 1) * n), k, source)


def _rope_tables(config: ModelConfig) -> dict[str, tuple[Rope, int]]:
    """Returns of every rotation table what decides it, and 0 for cosines or 1 for sines."""
    ropes = {rope_of(config.layer(i)) for i in range(config.n_layers)}
    return {
        name: (rope, part) for rope in ropes for part, name in enumerate(rope_names(config, rope))
    }


def _write_packed(
    file: FileIO, offset: int, name: str, rows: range, k: int, source: WeightSource
) -> Iterator[int]:
    for chunk in _chunks(rows, k):
        plain = source.rows(name, chunk.start, chunk.stop)
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


def _write_transposed(
    file: FileIO, offset: int, name: str, rows: range, k: int, source: WeightSource
) -> Iterator[int]:
    """Writes W.T [K, N]: rows of W are columns of the file, so each chunk goes to K places."""
    for chunk in _chunks(rows, k):
        columns = np.ascontiguousarray(float_rows(source, name, chunk.start, chunk.stop).T)
        first = chunk.start - rows.start
        for row in range(k):
            _write_at(file, offset + 4 * (row * len(rows) + first), columns[row])
        yield columns.nbytes


def _chunks(rows: range, k: int) -> Iterator[range]:
    """Yields parts of ``rows`` that begin at multiples of the panel width, as packing needs."""
    step = max(PANEL, CHUNK_BYTES // (4 * k) // PANEL * PANEL)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def _write_at(file: FileIO, offset: int, values: npt.NDArray[np.generic]) -> int:
    """Writes all of ``values`` at ``offset``; a single call may write less."""
    view = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
    n_written = 0
    while n_written < len(view):
        file.seek(offset + n_written)
        n_written += file.write(view[n_written:])
    return n_written
