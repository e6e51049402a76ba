"""Weights of the encoder of an encoder-decoder model, by the names of its own recipe."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from edgedec.models.config import ModelConfig
from edgedec.models.families import weight_shapes
from edgedec.models.quant import PlainTensor, QuantFormat
from edgedec.models.weights import WeightSource


def encoder_name(name: str, known: Collection[str]) -> str:
    """Returns what the model calls the weight ``name`` of its encoder.

    known: the model's own names. What decoder and encoder have in common is not there twice.
    """
    stem = f"encoder.{name}"
    return stem if stem in known else name


class EncoderWeights:
    """A `WeightSource` of the encoder of ``source``."""

    def __init__(self, source: WeightSource) -> None:
        encoder = source.config.encoder
        assert encoder is not None
        self.config: ModelConfig = encoder
        self._source = source
        self._known = weight_shapes(source.config)

    def format(self, name: str) -> QuantFormat:
        """Returns the storage format of the matrix ``name``."""
        return self._source.format(encoder_name(name, self._known))

    def rows(self, name: str, start: int, stop: int) -> PlainTensor:
        """Returns rows [start, stop) of the matrix ``name``."""
        return self._source.rows(encoder_name(name, self._known), start, stop)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """Returns the norm weight or bias ``name``."""
        return self._source.vector(encoder_name(name, self._known))

    def release(self) -> None:
        """Drops mapped pages of what was read."""
        self._source.release()
