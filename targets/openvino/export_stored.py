"""The weights of an OpenVINO graph: written once to a file that its constants map."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import openvino as ov

from edgedec.export.weights_file import (
    Progress,
    StoredTensor,
    offsets_of,
    write_tensors,
)
from edgedec.models.config import ModelConfig
from edgedec.models.families import weight_shapes
from edgedec.models.quant import QuantFormat
from edgedec.models.weights import WeightSource
from edgedec.targets.openvino.export_groups import GroupLayout


class StoredWeights:
    """What a model's constants consist of, as float32 or as groups of codes.

    formats: of every matrix.
    """

    def __init__(self, config: ModelConfig, formats: Mapping[str, QuantFormat]) -> None:
        self.groups: dict[str, GroupLayout] = {}
        self._tensors: dict[str, StoredTensor] = {}
        self._elements: dict[str, tuple[str, tuple[int, ...]]] = {}
        for name, shape in weight_shapes(config).items():
            if len(shape) == 2 and not formats[name].is_float:
                self._add_groups(GroupLayout(name, formats[name], shape[0], shape[1]))
            else:
                self._add(StoredTensor(name, False, _float_dims(config, name, shape)))

    def write(self, source: WeightSource, path: Path, on_progress: Progress) -> None:
        """Writes them to ``path``; an OSError says why that fails."""
        chunks = {k: v for group in self.groups.values() for k, v in group.chunks(source).items()}
        write_tensors([*self._tensors.values()], source, path, on_progress, chunks)

    def constants(self, path: Path) -> Constants:
        """Returns the written weights as constants."""
        return Constants(path, self._tensors, self._elements)

    def _add(self, tensor: StoredTensor, element: str = "f32") -> None:
        self._tensors[tensor.name] = tensor
        self._elements[tensor.name] = element, tensor.dims

    def _add_groups(self, layout: GroupLayout) -> None:
        codes, *others = layout.tensors()
        self.groups[layout.name] = layout
        self._add(codes)
        self._elements[codes.name] = layout.element, (layout.n, layout.n_groups, layout.group)
        for tensor in others:
            self._add(tensor)


class Constants:
    """Constants over the file ``path``, whose memory lives as long as this."""

    def __init__(
        self,
        path: Path,
        tensors: Mapping[str, StoredTensor],
        elements: Mapping[str, tuple[str, tuple[int, ...]]],
    ) -> None:
        self._bytes = np.memmap(path, np.uint8, "r")
        self._tensors, self._elements = tensors, elements
        self._offsets = offsets_of([*tensors.values()])

    def get(self, name: str) -> ov.Node:
        """Returns the constant ``name``."""
        element, dims = self._elements[name]
        offset, nbytes = self._offsets[name], self._tensors[name].nbytes
        part = self._bytes[offset : offset + nbytes]
        tensor = ov.Tensor(part, ov.Shape(dims), getattr(ov.Type, element))
        return ov.op.Constant(tensor, shared_memory=True)


def _float_dims(config: ModelConfig, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the sizes of a float tensor as it is stored, a matrix transposed."""
    if ".experts." not in name:
        return shape[::-1]
    return config.n_experts, shape[1], shape[0] // config.n_experts
