"""Floats of 4 and 8 bits, as tables of their values.

Source: OCP ``Microscaling Formats (MX) Specification`` 1.0 (E2M1, E4M3 and E5M2).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

_HALVES = np.array([0, 1, 2, 3, 4, 6, 8, 12], np.float32)
FP4_VALUES: Floats = (np.concatenate([_HALVES, -_HALVES]) / 2).astype(np.float32)
"""E2M1."""


def fp8_table(exponent_bits: int) -> Floats:
    """Returns the values of all bytes; E4M3 has no infinities, one NaN of each sign."""
    codes = np.arange(256)
    n_mantissa = 7 - exponent_bits
    exponent = codes >> n_mantissa & (1 << exponent_bits) - 1
    mantissa = (codes & (1 << n_mantissa) - 1) / (1 << n_mantissa)
    bias = (1 << exponent_bits - 1) - 1
    values = np.where(
        exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - bias)
    )
    last = exponent == (1 << exponent_bits) - 1
    values = np.where(last & ((exponent_bits == 5) | (mantissa == 7 / 8)), np.nan, values)
    return np.where(codes & 0x80, -values, values).astype(np.float32)
