"""KV maps of a bundle, read back as numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.export.to_onnx.make import array_of
from edgedec.export.to_onnx.messages import TensorProto, load_model
from edgedec.kernels import PackedMatrix, unpack_rows
from edgedec.models.kv_maps import MapsEntry
from edgedec.training.kv_maps.kv_maps import MAP_FORMAT, Float32, LayerMaps, Scales


def read_maps(
    bundle: Path, entry: MapsEntry, hidden_size: int
) -> tuple[tuple[LayerMaps, ...], Scales | None]:
    """Returns what `write_kv_maps` wrote; quantised, they are not the very same numbers.

    hidden_size: of the model, whose hidden states maps without scales read.
    """
    graph = load_model(bundle / entry.graph).graph
    stored = _Stored({t.name: t for t in graph.initializer}, bundle / entry.weights)
    scales = None
    if "mean" in stored:
        scales = Scales(stored.vector("mean"), np.float32(1) / stored.vector("inverse_deviation"))
    layers = sorted(
        int(name.split(".")[1]) for name in stored.names if name.endswith("key_map.weight")
    )
    return tuple(_layer(stored, layer, hidden_size) for layer in layers), scales


class _Stored:
    """Initializers, the bytes of most of them in a file."""

    def __init__(self, tensors: dict[str, TensorProto], path: Path) -> None:
        self._tensors = tensors
        self._bytes = np.memmap(path, np.uint8, "r")

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def number(self, name: str) -> int:
        return int(array_of(self._tensors[name])[0])

    def vector(self, name: str) -> Float32:
        return self.bytes(name).view(np.float32).copy()

    def bytes(self, name: str) -> npt.NDArray[Any]:
        place = {item.key: int(item.value) for item in self._tensors[name].external_data[1:]}
        return self._bytes[place["offset"] : place["offset"] + place["length"]]


def _layer(stored: _Stored, layer: int, hidden_size: int) -> LayerMaps:
    stem = f"layers.{layer}"
    first, stop = 0, hidden_size
    if f"{stem}.kv.first" in stored:
        first, stop = (stored.number(f"{stem}.kv.{end}") for end in ("first", "stop"))
    names = [f"{stem}.{name}" for name in ("key_map", "value_map")]
    bias = [stored.vector(f"{name}.bias") for name in names]
    weights = [
        unpack_rows(
            PackedMatrix(stored.bytes(f"{name}.weight"), MAP_FORMAT.index, len(b), stop - first),
            0,
            len(b),
        )
        for name, b in zip(names, bias, strict=True)
    ]
    return LayerMaps(layer, np.concatenate(weights), np.concatenate(bias), first)
