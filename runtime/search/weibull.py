"""Mixtures of two Weibull distributions: which of several probabilities belong to the low one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

_SHAPES = 0.05, 50.0
"""Between which a shape is looked for; as many equal values would have an infinite one."""
_N_HALVINGS = 50
_N_ROUNDS = 100
_TINY = 1e-12


def fit_weibull(values: Float64, weights: Float64) -> tuple[float, float]:
    """Returns the likeliest shape and scale of weighted values above 0.

    Shapes: values [N], weights [N].
    """
    logs = np.log(values)
    largest = float(logs.max())
    mean_log = float(weights @ logs / weights.sum())
    low, high = _SHAPES
    for _ in range(_N_HALVINGS):
        shape = (low + high) / 2
        powers = weights * np.exp(shape * (logs - largest))
        if float(powers @ logs / powers.sum()) - 1 / shape - mean_log > 0:
            high = shape
        else:
            low = shape
    powers = weights * np.exp(shape * (logs - largest))
    return shape, float(np.exp(largest + np.log(powers.sum() / weights.sum()) / shape))


def share_of_high(values: Float64) -> Float64:
    """Returns for each value how likely it is of the higher of two components.

    By expectation maximisation, from the upper and the lower half of the values.

    Shapes: values [N], above 0, at least two of them different; the result [N].
    """
    logs = np.log(values)
    share = np.where(logs > np.median(logs), 0.9, 0.1)
    if not (logs > np.median(logs)).any():
        share = np.where(logs == logs.max(), 0.9, 0.1)
    for _ in range(_N_ROUNDS):
        parts = [_log_density(logs, values, weights) for weights in (share, 1 - share)]
        new = 1 / (1 + np.exp(np.clip(parts[1] - parts[0], -700, 700)))
        new = np.clip(new, _TINY, 1 - _TINY)
        if np.abs(new - share).max() < 1e-6:
            break
        share = new
    return share


def _log_density(logs: Float64, values: Float64, weights: Float64) -> Float64:
    """Returns the log-density of a component, times its share."""
    shape, scale = fit_weibull(values, weights)
    scaled = shape * (logs - np.log(scale))
    density: Float64 = np.log(shape) - logs + scaled - np.exp(np.minimum(scaled, 700))
    density += np.log(weights.mean())
    return density
