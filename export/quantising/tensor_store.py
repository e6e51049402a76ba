"""Quantised matrices kept on disk while a bundle is made, so that none is quantised twice."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.models.quant import PlainTensor, QuantFormat


@dataclass(frozen=True)
class _Region:
    """Where one array of a tensor lies in the file."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, int]

    @property
    def row_nbytes(self) -> int:
        return self.dtype.itemsize * self.shape[1]


class TensorStore:
    """A file without a name that holds tensors with one scale per group.

    It goes when this object does, or the process, however that ends. Reading maps the rows asked
    for and no more, so memory does not grow with the model.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Makes the file in ``folder``; where the system keeps such files when None.

        Raises:
            OSError: The file cannot be made.
        """
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (it lives as long as this)
        self._n_bytes = 0
        self._tensors: dict[str, tuple[QuantFormat, dict[str, _Region]]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def put(self, name: str, n_rows: int, chunks: Iterable[PlainTensor]) -> None:
        """Writes the tensor ``name`` of ``n_rows``, which comes as ``chunks`` of whole rows.

        Raises:
            OSError: The file cannot be written, for instance because the disk is full.
        """
        regions: dict[str, _Region] = {}
        row = 0
        for chunk in chunks:
            arrays = {"codes": chunk.codes, "scale": chunk.scale, "minimum": chunk.minimum}
            for key, array in arrays.items():
                if key not in regions:
                    regions[key] = self._region(array, n_rows)
                region = regions[key]
                self._file.seek(region.offset + row * region.row_nbytes)
                self._file.write(np.ascontiguousarray(array).data)
            row += chunk.shape[0]
        assert row == n_rows
        self._file.flush()
        self._tensors[name] = chunk.format, regions

    def rows(self, name: str, start: int, stop: int) -> PlainTensor:
        """Returns rows [start, stop) of the tensor ``name``."""
        fmt, regions = self._tensors[name]
        return PlainTensor(
            fmt, **{key: self._read(region, start, stop) for key, region in regions.items()}
        )

    def _region(self, array: npt.NDArray[Any], n_rows: int) -> _Region:
        """Returns room for an array of ``n_rows`` like ``array``; for none if that is empty."""
        n_rows = n_rows if len(array) else 0
        region = _Region(self._n_bytes, array.dtype, (n_rows, array.shape[1]))
        self._n_bytes += n_rows * region.row_nbytes
        return region

    def _read(self, region: _Region, start: int, stop: int) -> npt.NDArray[Any]:
        n_rows = min(stop, region.shape[0]) - start
        if n_rows <= 0:
            return np.zeros((0, region.shape[1]), region.dtype)
        offset = region.offset + start * region.row_nbytes
        shape = (n_rows, region.shape[1])
        return np.asarray(np.memmap(self._file, region.dtype, "r", offset, shape))
