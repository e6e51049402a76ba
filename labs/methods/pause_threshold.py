"""AdaDec's threshold, learned from texts that are known to be right."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import ConfigError

Float64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_SEED = 42
_HELD_OUT = 0.2
_MIN_OF_EACH = 10


def learn_threshold(entropies: Float64, is_right: Bools) -> float:
    """Returns the entropy above which the likeliest token is rather wrong than right.

    A logistic regression on the entropy alone, over as many right positions as wrong ones; of its
    probabilities the one that tells a held-out fifth best.

    Args:
        entropies: Of the model's distribution at positions of right texts.
        is_right: Whether the likeliest token was the text's.

    Shapes: entropies [N] float64, is_right [N] bool.
    Units: bits in, bits out (any unit of entropy will do).
    Raises:
        ConfigError: There are too few positions of a kind, or entropy does not tell them apart.
    Source: AdaDec (arXiv 2506.08980), learning of the threshold.
    """
    n_of_each = int(min(is_right.sum(), (~is_right).sum()))
    if n_of_each < _MIN_OF_EACH:
        raise ConfigError(
            f"the texts hold {n_of_each} positions of the rarer kind (the likeliest token right or "
            f"wrong), expected at least {_MIN_OF_EACH}: use more texts"
        )
    rng = np.random.default_rng(_SEED)
    chosen = np.concatenate(
        [rng.permutation(np.flatnonzero(is_right == kind))[:n_of_each] for kind in (True, False)]
    )
    chosen = rng.permutation(chosen)
    n_held_out = max(1, round(_HELD_OUT * len(chosen)))
    held_out, used = chosen[:n_held_out], chosen[n_held_out:]
    slope, offset = _fit(entropies[used], is_right[used])
    if slope >= 0:
        raise ConfigError(
            "the model's entropy says nothing about its mistakes in these texts: use others"
        )
    cuts = np.arange(1, 100) / 100
    thresholds = (np.log(cuts / (1 - cuts)) - offset) / slope
    called_right = entropies[held_out] < thresholds[:, np.newaxis]
    accuracy = (called_right == is_right[held_out]).mean(axis=1)
    best = np.flatnonzero(accuracy == accuracy.max())
    return max(0.0, float(thresholds[best[len(best) // 2]]))


def _fit(entropies: Float64, is_right: Bools) -> tuple[float, float]:
    """Returns slope and offset of the log-odds of being right, by Newton's method.

    A little weight decay keeps data that one entropy separates finite.
    """
    features = np.stack([entropies, np.ones_like(entropies)], axis=1)
    decay = np.diag([1e-3, 1e-6])
    weights = np.zeros(2)
    for _ in range(50):
        probs = 1 / (1 + np.exp(-np.clip(features @ weights, -60, 60)))
        gradient = features.T @ (is_right - probs) - decay @ weights
        curvature = (features * (probs * (1 - probs))[:, np.newaxis]).T @ features + decay
        step = np.linalg.solve(curvature, gradient)
        weights += step
        if np.abs(step).max() < 1e-9:
            break
    return float(weights[0]), float(weights[1])
