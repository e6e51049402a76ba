"""Checks of arrays before their addresses are handed to a kernel. All raise ValueError."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]


def expect(name: str, array: Array, dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    """Raises unless the array is contiguous and as stated; -1 stands for any size."""
    fits = len(shape) == array.ndim and all(
        want in (-1, got) for want, got in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype != dtype:
        sizes = ", ".join("any" if size < 0 else str(size) for size in shape)
        raise ValueError(
            f"{name}: got {array.dtype} {list(array.shape)}, expected {dtype.__name__} [{sizes}]"
        )
    if not array.flags.c_contiguous:
        raise ValueError(f"{name}: got a strided view, expected a contiguous array")
    if not array.flags.aligned:
        raise ValueError(f"{name}: got elements at odd addresses, expected an aligned array")


def expect_range(name: str, values: Integers, low: int, high: int | Integers) -> None:
    """Raises unless low <= values < high; ``high`` may be one bound for each value."""
    if values.size and not bool(((values >= low) & (values < high)).all()):
        raise ValueError(f"{name}: got {values.min()} to {values.max()}, expected {low} and up,"
                         f" below {high if isinstance(high, int) else 'the own row'}")  # fmt: skip


def pointer(name: str, array: Array, dtype: type[np.generic], shape: tuple[int, ...]) -> int:
    """Returns the address of an array that is as stated."""
    expect(name, array, dtype, shape)
    return array.ctypes.data


def output(out: Floats | None, shape: tuple[int, int]) -> Floats:
    """Returns ``out``, which has to have that shape, or a new array."""
    if out is None:
        return np.empty(shape, np.float32)
    expect("out", out, np.float32, shape)
    return out
