"""A checkpoint whose LM head knows only some of the tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.checkpoint import Checkpoint, EditedCheckpoint
from edgedec.models.blocks import head_weight
from edgedec.models.config import ModelConfig
from edgedec.models.head_ids import Ids, check_head_ids
from edgedec.models.quant import PlainTensor, QuantFormat

TRIMMED = "lm_head.weight"
_CHUNK_ROWS = 4096
"""Rows of the whole head read at once."""


class TrimmedHead(EditedCheckpoint):
    """The checkpoint with the rows ``ids`` of its LM head as a matrix of their own.

    The embedding stays whole: the model reads every token, it only never names the others.
    """

    def __init__(self, checkpoint: Checkpoint, ids: Ids) -> None:
        super().__init__(checkpoint)
        check_head_ids(ids, checkpoint.config.vocab_size)
        self._ids = ids
        self._whole = head_weight(checkpoint.config)
        self._config = dataclasses.replace(
            checkpoint.config, is_head_tied=False, trimmed_head_size=len(ids)
        )

    @property
    def config(self) -> ModelConfig:
        """The hyper-parameters with the trimmed head."""
        return self._config

    def format(self, name: str) -> QuantFormat:
        """Returns the storage format of the matrix ``name``."""
        return self._checkpoint.format(self._whole if name == TRIMMED else name)

    def stand_in(self, name: str) -> QuantFormat | None:
        """Returns the format that stands in for that of the matrix ``name``."""
        return self._checkpoint.stand_in(self._whole if name == TRIMMED else name)

    def rows(self, name: str, start: int, stop: int) -> PlainTensor:
        """Returns rows [start, stop) of the matrix ``name``."""
        if name != TRIMMED:
            return self._checkpoint.rows(name, start, stop)
        ids = self._ids[start:stop]
        parts = []
        for first in range(0, self.config.vocab_size, _CHUNK_ROWS):
            last = min(first + _CHUNK_ROWS, self.config.vocab_size)
            inside = ids[(ids >= first) & (ids < last)]
            if len(inside):
                parts.append(_take(self._checkpoint.rows(self._whole, first, last), inside - first))
        return _joined(parts)


def _take(tensor: PlainTensor, rows: Ids) -> PlainTensor:
    """Returns some rows of ``tensor``; the fields its format does not use stay empty."""
    return _each(lambda arrays: arrays[0][rows] if len(arrays[0]) else arrays[0], [tensor])


def _joined(parts: list[PlainTensor]) -> PlainTensor:
    return _each(np.concatenate, parts)


def _each(
    combine: Callable[[list[npt.NDArray[Any]]], npt.NDArray[Any]], tensors: list[PlainTensor]
) -> PlainTensor:
    """Returns the tensor whose every array is combined from those of ``tensors``."""
    return PlainTensor(
        tensors[0].format,
        combine([tensor.codes for tensor in tensors]),
        combine([tensor.scale for tensor in tensors]),
        combine([tensor.minimum for tensor in tensors]),
        combine([tensor.sub_scale for tensor in tensors]),
        combine([tensor.sub_minimum for tensor in tensors]),
    )
