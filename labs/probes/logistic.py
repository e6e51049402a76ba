"""Logistic regression with a quadratic penalty, by Newton's method."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

_BLOCK = 4096  # rows whose products are summed up at once
_MOST_STEPS = 50
_MOST_HALVINGS = 20
_TOLERANCE = 1e-7  # of the objective, for each row


@dataclass(frozen=True, eq=False)
class Logistic:
    """What was fitted. Shapes: weights [F], of inputs as they are."""

    weights: Float64
    bias: float

    def odds(self, inputs: Float32) -> Float64:
        """Returns the log-odds of each row [T]."""
        return np.asarray(inputs @ self.weights.astype(np.float32) + self.bias, np.float64)

    def surprise(self, inputs: Float32, is_right: npt.NDArray[np.bool_]) -> float:
        """Returns the mean of -ln p of what each row is. Units: nats."""
        return float(np.logaddexp(0, np.where(is_right, -1, 1) * self.odds(inputs)).mean())


def fit_logistic(inputs: Float32, is_right: npt.NDArray[np.bool_], penalty: Float64) -> Logistic:
    """Returns the weights that minimise the sum of -ln p and ``penalty / 2`` of their squares.

    Inputs count as standardised: each less its mean, over its deviation. The bias is not penalised.

    Shapes: inputs [T, F], is_right [T], penalty [F].
    """
    mean, scale = inputs.mean(0, dtype=np.float64), inputs.std(0, dtype=np.float64) + 1e-6
    point = np.zeros(inputs.shape[1] + 1)
    value = _objective(inputs, is_right, point, mean, scale, penalty)
    for _ in range(_MOST_STEPS):
        step = _newton_step(inputs, is_right, point, mean, scale, penalty)
        for _ in range(_MOST_HALVINGS):
            tried = _objective(inputs, is_right, point - step, mean, scale, penalty)
            if tried <= value:
                break
            step = step / 2
        point, gained, value = point - step, value - tried, min(tried, value)
        if gained < _TOLERANCE * len(inputs):
            break
    weights = point[:-1] / scale
    return Logistic(weights, float(point[-1] - weights @ mean))


def _odds(block: Float32, point: Float64, mean: Float64, scale: Float64) -> Float64:
    weights = point[:-1] / scale
    found = block @ weights.astype(np.float32) + (point[-1] - weights @ mean)
    return np.asarray(found, np.float64)


def _objective(
    inputs: Float32,
    is_right: npt.NDArray[np.bool_],
    point: Float64,
    mean: Float64,
    scale: Float64,
    penalty: Float64,
) -> float:
    signed = np.where(is_right, -1, 1) * _odds(inputs, point, mean, scale)
    return float(np.logaddexp(0, signed).sum() + penalty @ np.square(point[:-1]) / 2)


def _newton_step(
    inputs: Float32,
    is_right: npt.NDArray[np.bool_],
    point: Float64,
    mean: Float64,
    scale: Float64,
    penalty: Float64,
) -> Float64:
    n = len(point)
    gradient, hessian = np.append(penalty * point[:-1], 0.0), np.zeros((n, n))
    hessian[np.diag_indices(n)] = np.append(penalty, 1e-9)
    for start in range(0, len(inputs), _BLOCK):
        block = inputs[start : start + _BLOCK]
        chance = 1 / (1 + np.exp(-_odds(block, point, mean, scale)))
        centred = ((block - mean) / scale).astype(np.float32)
        rows = np.concatenate([centred, np.ones((len(block), 1), np.float32)], axis=1)
        gradient += rows.T @ (chance - is_right[start : start + _BLOCK]).astype(np.float32)
        weighted = rows * np.sqrt(chance * (1 - chance)).astype(np.float32)[:, None]
        hessian += weighted.T @ weighted
    step: Float64 = np.linalg.solve(hessian, gradient)
    return step
