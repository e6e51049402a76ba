"""What decoding needs to know of a logits row without looking at all of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import SessionError
from edgedec.models.graph import N_TOP


@dataclass(frozen=True, eq=False)
class RowStats:
    """Statistics of raw logits rows: before temperature, penalties and masks.

    NaN counts as the largest logit. Where the largest is not finite, the sums are NaN.

    Shapes, for R rows:
        argmax: [R] int64, the lowest id of equals.
        log_sum_exp: [R] float32.
        entropy: [R] float32. Units: nats.
        top_ids: [R, 8] int64, likeliest first, of equals the lowest id first; -1 where the
            vocabulary is smaller.
        top_logits: [R, 8] float32; -inf where there is no such token.
    """

    argmax: npt.NDArray[np.int64]
    log_sum_exp: npt.NDArray[np.float32]
    entropy: npt.NDArray[np.float32]
    top_ids: npt.NDArray[np.int64]
    top_logits: npt.NDArray[np.float32]

    @classmethod
    def of(cls, logits: npt.NDArray[Any]) -> Self:
        """Returns the statistics of ``logits`` [R, V], for graphs that lack the operator."""
        rows = logits.astype(np.float64)
        n_rows, n_ids = rows.shape
        largest = rows.max(axis=1, keepdims=True, initial=-np.inf)
        with np.errstate(invalid="ignore"):  # rows without a finite largest logit become NaN
            shifted = rows - largest
            weights = np.exp(shifted)
            total = weights.sum(axis=1)
            mean = np.where(weights > 0, weights * shifted, weights).sum(axis=1) / total
        ids = np.lexsort((-rows, ~np.isnan(rows)), axis=1)[:, :N_TOP]
        top_ids = np.full((n_rows, N_TOP), -1, np.int64)
        top_logits = np.full((n_rows, N_TOP), -np.inf, np.float32)
        top_ids[:, : min(n_ids, N_TOP)] = ids
        top_logits[:, : min(n_ids, N_TOP)] = np.take_along_axis(rows, ids, axis=1)
        return cls(
            argmax=top_ids[:, 0].copy(),
            log_sum_exp=(largest[:, 0] + np.log(total)).astype(np.float32),
            entropy=(np.log(total) - mean).astype(np.float32),
            top_ids=top_ids,
            top_logits=top_logits,
        )

    def part(self, rows: slice | Sequence[int]) -> RowStats:
        """Returns the statistics of some of the rows; copies, where these are listed."""
        return RowStats(**{name: values[rows] for name, values in vars(self).items()})

    def check_sum(self, row: int) -> None:
        """Raises a SessionError unless the logits of a row give probabilities."""
        if not math.isfinite(self.log_sum_exp[row]):
            raise SessionError(
                f"the logits sum up to {self.log_sum_exp[row]}, expected a number; the model's "
                "weights are broken: export it again"
            )

    def copy(self) -> RowStats:
        """Returns the same statistics in arrays of their own."""
        return RowStats(**{name: values.copy() for name, values in vars(self).items()})
