"""Arrays in the memory that a provider of ONNX Runtime computes in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnxruntime import OrtValue

from edgedec.runtime.backends.kv_cache import lazy_zeros
from edgedec.targets.device_target import Place

HOST = "cpu"
"""Memory of the processor itself."""


def placed(array: npt.NDArray[Any], place: Place) -> OrtValue:
    """Returns ``array`` in the memory of ``place``: itself, or a copy of it there."""
    if place.memory == HOST:
        return OrtValue.ortvalue_from_numpy(array)
    value = OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype.type, place.memory, 0)
    value.update_inplace(array)
    return value


class DeviceArray:
    """Rows of keys or values [1, heads, rows, width], bound to a graph as ``value``.

    Of the CPU's memory what was never written takes none. From other memory they come and go whole.
    """

    def __init__(
        self, shape: tuple[int, int, int, int], dtype: type[np.generic], provider: Place
    ) -> None:
        self._host: npt.NDArray[Any] | None = None
        if provider.memory == HOST:
            self._host = lazy_zeros(shape, dtype)
            self.value = OrtValue.ortvalue_from_numpy(self._host)
        else:
            self.value = OrtValue.ortvalue_from_shape_and_type(shape, dtype, provider.memory, 0)

    def take(self, places: Sequence[int]) -> npt.NDArray[Any]:
        """Returns copies of the rows ``places``."""
        array = self.value.numpy() if self._host is None else self._host
        return array[:, :, list(places)]

    def put(self, start: int, rows: npt.NDArray[Any]) -> None:
        """Writes ``rows`` from row ``start`` on."""
        stop = start + rows.shape[2]
        if self._host is not None:
            self._host[:, :, start:stop] = rows
            return
        array = self.value.numpy()
        array[:, :, start:stop] = rows
        self.value.update_inplace(array)
