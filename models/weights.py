"""Weights by our names: where each comes from, and whether a checkpoint has what a recipe reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edgedec.models.blocks import weight_shapes
from edgedec.models.config import ModelConfig
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.quant import PlainTensor, QuantFormat

N_NAMED = 3
"""How many weights an error names before it only counts."""


class WeightSource(Protocol):
    """Weights of one model, read a few rows at a time so that no whole model is ever in memory."""

    @property
    def config(self) -> ModelConfig:
        """The hyper-parameters the weights belong to."""

    def format(self, name: str) -> QuantFormat:
        """Returns the storage format of the matrix ``name``."""

    def rows(self, name: str, start: int, stop: int) -> PlainTensor:
        """Returns rows [start, stop) of the matrix ``name`` [N, K], rotary halves apart."""

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """Returns the norm weight or bias ``name``."""

    def release(self) -> None:
        """Drops mapped pages of what was read; the next read maps them again."""


def float_rows(source: WeightSource, name: str, start: int, stop: int) -> npt.NDArray[np.float32]:
    """Returns rows [start, stop) of the matrix ``name`` as float32 [stop - start, K]."""
    return source.rows(name, start, stop).dequantize()


@dataclass(frozen=True)
class SourceWeight:
    """Where one of our weights lies in a checkpoint.

    name: the checkpoint's own name.
    n_interleaved_heads: 0, or the number of heads whose rows are stored in rotary pairs
        (0, d/2, 1, d/2 + 1, ...) and must be put back into halves (0, 1, ..., d - 1).
    """

    name: str
    n_interleaved_heads: int = 0

    def row_order(self, n_rows: int) -> npt.NDArray[np.intp] | None:
        """Returns, for each of our rows, its row in the checkpoint; None if they are the same."""
        if not self.n_interleaved_heads:
            return None
        order = np.arange(n_rows, dtype=np.intp).reshape(self.n_interleaved_heads, -1, 2)
        return order.swapaxes(1, 2).reshape(n_rows)


WeightMap = dict[str, SourceWeight]
"""Our weight name -> where it lies."""


def check_layers(config: ModelConfig, n_stored: int) -> None:
    """Checks the stated layer count before anything is built per layer.

    Raises:
        CheckpointError: there are fewer tensors than layers.
    """
    if config.n_layers > n_stored:
        raise CheckpointError(
            f"the configuration states {config.n_layers} layers, but there are only {n_stored} "
            f"tensors; the file is damaged or incomplete"
        )


def check_weights(
    config: ModelConfig,
    weights: WeightMap,
    stored: Mapping[str, tuple[int, ...]],
    ignorable: frozenset[str] = frozenset(),
) -> None:
    """Checks that the checkpoint holds exactly what the recipe of ``config`` reads.

    Args:
        stored: shape of every tensor by the checkpoint's own name.
        ignorable: stored names that carry nothing the recipe needs.

    Raises:
        CheckpointError: a weight is missing or has another shape.
        UnsupportedModelError: a tensor is there that the recipe would leave out.
    """
    shapes = weight_shapes(config)
    if missing := [weights[ours].name for ours in shapes if weights[ours].name not in stored]:
        raise CheckpointError(f"missing {_named(missing)}; the file is incomplete, fetch it again")
    for ours, expected in shapes.items():
        name = weights[ours].name
        if stored[name] != expected:
            raise CheckpointError(
                f"tensor {name} has shape {list(stored[name])}, expected {list(expected)} "
                f"from the checkpoint's own configuration"
            )
    used = {weights[ours].name for ours in shapes}
    if extra := sorted(set(stored) - used - ignorable):
        raise UnsupportedModelError(
            f"the {config.family} recipe does not read {_named(extra)}; the model is a variant "
            f"of {config.family} that edgedec does not know"
        )


def _named(names: list[str]) -> str:
    noun = "tensor" if len(names) == 1 else f"{len(names)} tensors:"
    more = ", ..." if len(names) > N_NAMED else ""
    return f"{noun} {', '.join(names[:N_NAMED])}{more}"
