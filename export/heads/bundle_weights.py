"""Weights of a model as its bundle holds them, packed, read back as floats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from edgedec.export.to_onnx.messages import load_model
from edgedec.kernels.cpu import PackedMatrix
from edgedec.kernels.embed_op import embed, unpack_rows
from edgedec.models.draft_heads import HeadEntry, head_shapes
from edgedec.models.errors import ConfigError
from edgedec.models.families import weight_shapes
from edgedec.models.model_entry import ModelEntry

Float32 = npt.NDArray[np.float32]


class BundleWeights:
    """The weights of a fused graph by our names. entry: what is stated of its model."""

    def __init__(
        self, folder: Path, entry: ModelEntry, shapes: Mapping[str, tuple[int, ...]] | None = None
    ) -> None:
        """shapes: of all weights, where the model is not of a family.

        Raises:
            ConfigError: The model's graph is not a fused one.
        """
        if entry.contract.backend != "fused":
            raise ConfigError(
                f"a draft head needs a fused graph, this bundle's is {entry.contract.backend}: "
                "export the model again with --target cpu"
            )
        self.entry = entry
        self.shapes = weight_shapes(entry.config) if shapes is None else dict(shapes)
        graph = load_model(folder / entry.graph).graph
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._beside = (folder / entry.graph).parent

    @classmethod
    def of_head(cls, folder: Path, entry: HeadEntry) -> BundleWeights:
        """Returns the weights of a draft head."""
        head = entry.head
        width = head.contract.can.features
        return cls(folder, head, head_shapes(head.config, width, entry.kind))

    def matrix(self, name: str, rows: npt.NDArray[np.integer] | None = None) -> Float32:
        """Returns rows of the matrix ``name``, all when None. Shapes: [n, K]."""
        packed = self.packed(name)
        if rows is None:
            return unpack_rows(packed, 0, packed.n)
        return embed(rows.astype(np.int64), packed)

    def vector(self, name: str) -> Float32:
        """Returns the norm weight or bias ``name``."""
        return self._bytes(name).view(np.float32).copy()

    def packed(self, name: str) -> PackedMatrix:
        """Returns the matrix ``name`` as it lies in the file."""
        n, k = self.shapes[name]
        fmt = self.entry.format_of(name).index
        return PackedMatrix(self._bytes(name), fmt, n, k)

    def place(self, name: str) -> dict[str, str]:
        """Returns where the bytes of a weight are, as ONNX says it: file, offset and length."""
        return {item.key: item.value for item in self._tensors[name].external_data}

    def _bytes(self, name: str) -> npt.NDArray[np.uint8]:
        place = self.place(name)
        path = self._beside / PurePosixPath(place["location"]).name
        offset, length = int(place["offset"]), int(place["length"])
        return np.memmap(path, np.uint8, "r", offset, (length,))
