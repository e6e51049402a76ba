"""The weights of ONNX graphs: written beside them, and their places noted in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from edgedec.export.to_onnx.graph import place
from edgedec.export.to_onnx.messages import ModelProto, TensorProto
from edgedec.export.weights_file import (
    WEIGHTS_FILE,
    Chunks,
    Progress,
    StoredTensor,
    offsets_of,
    write_tensors,
)
from edgedec.models.weights import WeightSource


def write_weights(
    model: ModelProto,
    source: WeightSource,
    folder: Path,
    on_progress: Progress | None = None,
    chunks: Mapping[str, Chunks] | None = None,
    also: Sequence[ModelProto] = (),
) -> Path:
    """Writes the weights ``model`` refers to and sets their places in it.

    uint8 initializers receive the packed matrix of their name, float ones the matrix transposed,
    the vector, or the rotation table. Matrices of experts are written one by one, packed
    [experts, bytes] or transposed [experts, K, N].

    Args:
        chunks: of tensors that consist of something else, by name.
        also: other graphs of the model, whose weights are written to the same file, and once if
            several graphs read them.

    Returns:
        The file written.

    Raises:
        OSError: the file cannot be written, for instance because the disk is full.
    """
    path = folder / WEIGHTS_FILE
    external = [
        t
        for of_graph in (model, *also)
        for t in of_graph.graph.initializer
        if t.data_location == TensorProto.EXTERNAL
    ]
    stored = {
        t.name: StoredTensor(t.name, t.data_type == TensorProto.UINT8, tuple(t.dims), _dtype(t))
        for t in external
    }
    tensors = list(stored.values())
    write_tensors(tensors, source, path, on_progress, chunks)
    offsets = offsets_of(tensors)
    for tensor in external:
        offset, length = str(offsets[tensor.name]), str(stored[tensor.name].nbytes)
        place(tensor, {"location": WEIGHTS_FILE, "offset": offset, "length": length})
    return path


def _dtype(tensor: TensorProto) -> str:
    return "float16" if tensor.data_type == TensorProto.FLOAT16 else "float32"
