"""Activation-aware scaling: columns that meet large inputs are rounded as if they were larger.

A norm's weights are divided by a scale for each channel, and the columns of the matrices that read
it are multiplied by the same: the model stays what it was, and rounding errs less where it counts.

Source: Lin et al., AWQ (2024), section 3.2, with scales judged after error-compensated rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgedec.export.calibration.compensate import Moments, round_compensated
from edgedec.export.checkpoint import Checkpoint, EditedCheckpoint
from edgedec.models.quant import FORMATS, PlainTensor, QuantFormat
from edgedec.models.weights import float_rows

Floats = npt.NDArray[np.float32]

EXPONENTS = (0.0, 0.15, 0.3, 0.45)
"""Of the inputs' mean magnitudes, tried as scales."""

_N_BLOCKS, _BLOCK_ROWS = 4, 32
"""Of each matrix, which scales are judged on."""


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
        own = super().vector(name)
        return own / self._scales[name] if name in self._scales else own


def sample_rows(source: Checkpoint, name: str, n: int) -> Floats:
    """Returns some rows of the matrix ``name``, which has ``n``."""
    starts = np.linspace(0, max(0, n - _BLOCK_ROWS), _N_BLOCKS).astype(int)
    blocks = [float_rows(source, name, i, min(i + _BLOCK_ROWS, n)) for i in sorted({*starts})]
    return np.concatenate(blocks)


def best_scale(inputs: Floats, samples: Sequence[tuple[Floats, QuantFormat]]) -> Floats:
    """Returns the scale [K] under which rounding errs least on what ``inputs`` [T, K] come to.

    Args:
        samples: Rows of the matrices that read them, and the formats they get.
    """
    second = inputs.T @ inputs / np.float32(len(inputs))
    size = np.abs(inputs).mean(axis=0) + np.float32(1e-8)
    trials = [_unit_mean(size**exponent) for exponent in EXPONENTS]
    losses = [_loss(second / np.outer(s, s), s, samples) for s in trials]
    return trials[int(np.argmin(losses))]


def _unit_mean(scale: Floats) -> Floats:
    unit: Floats = (scale / np.exp(np.log(scale).mean())).astype(np.float32)
    return unit


def _loss(
    second: Floats,
    scale: Floats,
    samples: Sequence[tuple[Floats, QuantFormat]],
) -> float:
    """Returns the squared error of all outputs. second: moments of the scaled inputs."""
    moments, lost = Moments.of(second), 0.0
    for rows, fmt in samples:
        scaled = rows * scale
        errors = round_compensated(scaled, moments, fmt).dequantize() - scaled
        lost += float(np.vdot(errors @ second, errors))
    return lost
