"""Layers that keep a state instead of keys and values: what they are, and what they compute.

A token's *row* is what its layer's projections put into the recurrence. A causal convolution over
the rows of a token and its latest ancestors comes first. Everything that later tokens need follows
from rows, so rows, and states that stand for all rows before them, are what is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import ConfigError

Array = npt.NDArray[Any]  # of the computing type, float32 or float64
RecurrenceKind = Literal["none", "short_conv"]

MAX_CONV_SIZE = 64
"""Rows that a convolution may span; published models have 3 or 4."""


@dataclass(frozen=True)
class Recurrence:
    """What recurrent layers of a model compute.

    kind: ``short_conv``: ``c * conv(b * x)`` of three projections, LFM2's.
    conv_size: rows that the convolution spans, a token's own the last. n_channels: it has.
    has_conv_bias: it adds a bias. has_bias: the projections do.

    Raises:
        ConfigError: These do not go together.
    """

    kind: RecurrenceKind = "none"
    conv_size: int = 1
    n_channels: int = 0
    has_conv_bias: bool = False
    has_bias: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(RecurrenceKind):
            known = ", ".join(get_args(RecurrenceKind))
            raise ConfigError(f"recurrence is {self.kind!r}, expected one of {known}")
        if not 0 < self.conv_size <= MAX_CONV_SIZE:
            raise ConfigError(
                f"conv_size of the recurrence is {self.conv_size}, expected 1 to {MAX_CONV_SIZE}"
            )
        if self.kind != "none" and not 0 < self.n_channels < 2**31:
            raise ConfigError(
                f"n_channels of the recurrence is {self.n_channels}, expected 1 or more"
            )

    @property
    def row_size(self) -> int:
        """Numbers of a token's row."""
        return self.n_channels

    @property
    def look_back(self) -> int:
        """Rows before its own that a token's convolution reads."""
        return self.conv_size - 1


def conv_taps(parents: Sequence[int], n_past: int, conv_size: int) -> npt.NDArray[np.int64]:
    """Returns which rows each new token's convolution reads, its own the last.

    parents: of each new token, -1 for the last of ``n_past`` rows before them.

    Shapes: [T, conv_size] int64, indices into those rows and then the new ones; -1 where the text
        has not begun.
    """
    taps = np.full((len(parents), conv_size), -1, np.int64)
    for i, parent in enumerate(parents):
        taps[i, -1] = n_past + i
        if parent >= 0:
            taps[i, :-1] = taps[parent, 1:]
        else:
            before = np.arange(n_past - conv_size + 1, n_past)
            taps[i, :-1] = np.maximum(before, -1)
    return taps


def convolved(rows: Array, taps: npt.NDArray[np.int64], weights: Mapping[str, Array]) -> Array:
    """Returns the causal convolution of each new token's channels.

    Shapes: rows [P + T, C]; taps as of `conv_taps`; weights ``conv.weight`` [C, 1, K] and perhaps
        ``conv.bias`` [C]; result [T, C].
    """
    read = np.where((taps >= 0)[:, :, None], rows[taps], 0)
    kernel = weights["conv.weight"][:, 0].T  # [K, C]
    result: Array = np.sum(read * kernel, axis=1)
    return result + weights["conv.bias"] if "conv.bias" in weights else result
