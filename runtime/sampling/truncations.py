"""Ways to leave out tokens besides top-k, top-p and min-p. Pure functions of scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]

_FEW = 1024
"""Most typical tokens that are sorted before all are."""


def within_sigma(values: npt.NDArray[Any], n: float) -> Bools:
    """Returns which logits are within ``n`` standard deviations of the largest one.

    The same tokens stay at any temperature.

    Shapes: values [V] -> [V] bool.

    Source: Tang et al., Top-n-sigma: Not All Logits Are You Need, 2024.
    """
    finite = values[np.isfinite(values)].astype(np.float64)
    return np.asarray(values >= finite.max() - n * finite.std())


def typical(scores: Float64, mass: float) -> Indices:
    """Returns indices of the most typical scores that reach ``mass``, in rising order.

    A token is typical if its surprise is near the entropy; of equals the first ones are taken.

    Shapes: scores [N] float64 log-probabilities, up to a constant -> [n].

    Source: Meister et al., Locally Typical Sampling, 2022, section 3.
    """
    weights = np.exp(scores - scores.max())
    probs = weights / weights.sum()
    logs = scores - scores.max() - np.log(weights.sum())
    entropy = -float(np.sum(probs * np.where(probs > 0, logs, 0.0)))
    distance = np.abs(-logs - entropy)
    order = np.argsort(distance, kind="stable") if len(scores) <= 2 * _FEW else _near(distance)
    reached = np.cumsum(probs[order])
    if reached[-1] < mass and len(order) < len(scores):
        order = np.argsort(distance, kind="stable")
        reached = np.cumsum(probs[order])
    n = min(len(order), int(np.searchsorted(reached, mass)) + 1)
    return np.sort(order[:n])


def _near(distance: Float64) -> Indices:
    """Returns the indices of the smallest distances, of those equal to the last one all."""
    bound = np.partition(distance, _FEW)[_FEW]
    few = np.flatnonzero(distance <= bound)
    return few[np.argsort(distance[few], kind="stable")]


def without_top(probs: Float64, threshold: float) -> Bools:
    """Returns which tokens stay if, of those at least this likely, all but the least likely go.

    Of equals the last one stays.

    Shapes: probs [N] float64 -> [N] bool.

    Source: XTC, "exclude top choices" (p-e-w, text-generation-webui, 2024).
    """
    stays = np.ones(len(probs), np.bool_)
    top = np.flatnonzero(probs >= threshold)
    if len(top) > 1:
        least = top[len(top) - 1 - int(np.argmin(probs[top][::-1]))]
        stays[top] = False
        stays[least] = True
    return stays
