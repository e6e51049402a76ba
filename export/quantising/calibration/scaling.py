"""Activation-aware scaling: columns that meet large inputs are rounded as if they were larger.

A norm's weights are divided by a scale for each channel, and the columns of the matrices that read
it are multiplied by the same: the model stays what it was, and rounding errs less where it counts.

The exponent is fixed. Of SmolLM2 in 4 bits (4,096 tokens to calibrate on) KL on other texts is
0.065 nats without scales, 0.044 with this one, 0.051 with exponents that leave the outputs of each
norm's matrices the least error. Of Qwen2.5-Coder-0.5B (1,024 tokens) it is 0.0143 without, 0.0154
with this one, 0.0161 with 0.15.

Source: Lin et al., AWQ (2024), section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.checkpoint import Checkpoint, EditedCheckpoint
from edgedec.models.quant import FORMATS, PlainTensor, QuantFormat
from edgedec.models.weights import float_rows

Floats = npt.NDArray[np.float32]

EXPONENT = 0.3
"""Of the inputs' mean magnitudes."""


class Scaled(EditedCheckpoint):
    """A checkpoint with some norms divided by scales that the matrices behind them are times.

    It computes what the checkpoint computes. Matrices that are scaled become float32.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self._scales: dict[str, Floats] = {}

    def scale(self, norm: str, readers: Sequence[str], scale: Floats) -> None:
        """Divides ``norm`` by ``scale`` [K], and multiplies the columns of all that read it."""
        for name in (norm, *readers):
            self._scales[name] = scale

    def format(self, name: str) -> QuantFormat:
        """Returns the storage format of the matrix ``name``."""
        return FORMATS["f32"] if name in self._scales else super().format(name)

    def rows(self, name: str, start: int, stop: int) -> PlainTensor:
        """Returns rows [start, stop) of the matrix ``name``."""
        if name not in self._scales:
            return super().rows(name, start, stop)
        values = float_rows(self._checkpoint, name, start, stop) * self._scales[name]
        return PlainTensor(FORMATS["f32"], values)

    def vector(self, name: str) -> Floats:
        """Returns the norm weight or bias ``name``."""
        vector = super().vector(name)
        return vector / self._scales[name] if name in self._scales else vector


def scale_for(inputs: Floats) -> Floats:
    """Returns the scale [K] of matrices that read ``inputs`` [T, K]; its geometric mean is 1."""
    scale = (np.abs(inputs).mean(axis=0) + np.float32(1e-8)) ** EXPONENT
    unit: Floats = (scale / np.exp(np.log(scale).mean())).astype(np.float32)
    return unit
