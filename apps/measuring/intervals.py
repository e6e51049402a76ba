"""Scores with their uncertainty, and two settings compared over the same samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

N_RESAMPLES = 10_000
_BLOCK = 500
_COVERAGE = (2.5, 97.5)


@dataclass(frozen=True)
class Interval:
    """A value and the interval that holds 95 % of its bootstrap resamples."""

    value: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        """Returns the fields, JSON-ready."""
        return {"value": self.value, "low": self.low, "high": self.high}


def bootstrap(columns: Float64, of: Callable[[Any], Any], seed: int = 0) -> Interval | None:
    """Returns a statistic of samples with its percentile interval, None if it has no value.

    Samples are drawn with replacement, whole columns at a time, so that numbers of the same sample
    stay together.

    Args:
        of: From the means of the rows of ``columns`` to the statistic; it gets an array whose
            first axis is the rows.

    Shapes:
        columns: [numbers per sample, samples] float64.
    """
    n_samples = columns.shape[1]
    if n_samples == 0:
        return None
    rng = np.random.default_rng(seed)
    samples: list[Float64] = []
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(of(columns.mean(axis=1)))
        for start in range(0, N_RESAMPLES, _BLOCK):
            n_drawn = min(_BLOCK, N_RESAMPLES - start)
            drawn = rng.integers(0, n_samples, (n_drawn, n_samples))
            samples.append(np.asarray(of(columns[:, drawn].mean(axis=2)), np.float64))
    finite = np.concatenate(samples)
    finite = finite[np.isfinite(finite)]
    if not math.isfinite(value) or not len(finite):
        return None
    low, high = np.percentile(finite, _COVERAGE)
    return Interval(value, float(low), float(high))


def sign_test(n_wins: int, n_losses: int) -> float:
    """Returns how likely a split at least as uneven is if neither side is better, ties left out.

    Source: McNemar's exact test, two-sided.
    """
    n, least = n_wins + n_losses, min(n_wins, n_losses)
    tail = sum(math.comb(n, k) for k in range(least + 1))
    return min(1.0, float(2 * tail / 2**n))
