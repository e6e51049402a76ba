"""Hidden states as what learns from them reads them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]


def normed(hidden: Float32, epsilon: float) -> Float32:
    """Returns rows of the residual stream [T, D], each divided by its root mean square."""
    scale = np.sqrt(np.square(hidden, dtype=np.float32).mean(axis=1, keepdims=True) + epsilon)
    result: Float32 = hidden / scale
    return result
