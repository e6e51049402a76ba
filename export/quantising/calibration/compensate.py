"""Error-compensated rounding: codes of a matrix that keep its outputs, not its entries.

Columns are rounded one after the other, each to make up for the errors of those before it. With
the inputs' second moments ``H = U U^T`` (U upper triangular), the squared error of the outputs is
``|E U|^2`` for the error E of the matrix, and column j of ``E U`` depends on errors up to j alone.

Source: Frantar et al., GPTQ (2023), algorithm 1; here the equal form that needs no inverse of H
(Chen et al., "The geometry of LLM quantization: GPTQ as Babai's nearest plane algorithm", 2025).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgedec.models.quant import PlainTensor, QuantFormat, ScaleKind

Floats = npt.NDArray[np.float32]

GROUP = 32
DAMPING = 0.01
"""Share of the mean second moment added to all of them, so that few tokens do."""

_SYMMETRIC_SPANS = (-6.4, -7.0, -7.5, -8.0, -8.5, -9.2, 6.5, 7.0)
"""Codes that the extreme value of a group is tried at; the negative end has one more."""
_LEVEL_SPANS = (-6.4, -7.0, -7.5, -8.0, -8.5, -9.2, 6.4, 7.0, 7.6, 8.4)
_RANGE_SPANS = (12.0, 13.0, 14.0, 14.5, 15.0, 15.5)
_ROWS = 512
"""Rows rounded at once, so that their trial codes stay in the L2 data store."""


@dataclass(frozen=True)
class Moments:
    """Second moments of a matrix's inputs, and the order in which its columns are rounded.

    factor: upper triangular, in that order. Whole groups follow each other, those with the largest
    inputs first.
    """

    order: npt.NDArray[np.intp]
    factor: Floats

    @classmethod
    def of(cls, second: Floats) -> Moments:
        """Returns the factor of second moments [K, K], K a multiple of 32."""
        diagonal = np.diagonal(second).astype(np.float64)
        groups = diagonal.reshape(-1, GROUP)
        inside = np.argsort(-groups, axis=1, kind="stable")
        first = np.argsort(-groups.sum(axis=1), kind="stable")
        order = (inside + np.arange(0, len(diagonal), GROUP)[:, None])[first].ravel()
        damped = second[np.ix_(order, order)].astype(np.float64)
        damped[np.diag_indices_from(damped)] += DAMPING * max(diagonal.mean(), 1e-30)
        # The Cholesky factor of the reversed matrix, reversed, is upper triangular.
        factor = np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1]
        return cls(order, np.ascontiguousarray(factor, np.float32))


def round_compensated(weights: Floats, moments: Moments, fmt: QuantFormat) -> PlainTensor:
    """Returns ``weights`` [N, K] in a format with a scale for each group of 32."""
    n, k = weights.shape
    codes = np.empty((n, k), np.uint8)
    scales = np.empty((2, n, k // GROUP), np.float16)
    for start in range(0, n, _ROWS):
        rows = slice(start, start + _ROWS)
        codes[rows], scales[:, rows] = _round_rows(weights[rows], moments, fmt)
    scale, minimum = scales
    if fmt.kind is ScaleKind.SINGLE:
        return PlainTensor(fmt, codes, scale)
    return PlainTensor(fmt, codes, scale, minimum)


def _round_rows(
    weights: Floats, moments: Moments, fmt: QuantFormat
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float16]]:
    order, factor = moments.order, moments.factor
    n, k = weights.shape
    ordered = np.ascontiguousarray(weights[:, order].T)  # [K, N]: columns are contiguous
    errors = np.zeros((k, n), np.float32)
    codes = np.empty((n, k), np.uint8)
    scales = np.empty((2, n, k // GROUP), np.float16)
    for start in range(0, k, GROUP):
        block = slice(start, start + GROUP)
        carried = factor[:start, block].T @ errors[:start]  # [32, N]
        rounded = _round_group(ordered[block], carried, factor[block, block], fmt)
        errors[block] = ordered[block] - rounded.values
        codes[:, order[block]] = rounded.codes.T
        scales[:, :, order[start] // GROUP] = rounded.scale, rounded.minimum
    return codes, scales


@dataclass(frozen=True)
class _Rounded:
    """A group of columns, for several scales at once or for the best of them.

    codes, values: [32, (trials,) N]; scale, minimum, loss: [(trials,) N].
    """

    codes: npt.NDArray[np.uint8]
    values: Floats
    scale: Floats
    minimum: Floats
    loss: Floats

    def best(self) -> _Rounded:
        """Returns, for each row, the trial of the least error."""
        i_best = self.loss.argmin(axis=0)
        rows = np.arange(len(i_best))
        return _Rounded(
            self.codes[:, i_best, rows],
            self.values[:, i_best, rows],
            self.scale[i_best, rows],
            self.minimum[i_best, rows],
            self.loss[i_best, rows],
        )

    def joined(self, other: _Rounded) -> _Rounded:
        """Returns two sets of one trial each as one of two."""
        return _Rounded(
            np.stack([self.codes, other.codes[:, 0]], axis=1),
            np.stack([self.values, other.values[:, 0]], axis=1),
            np.stack([self.scale, other.scale[0]]),
            np.stack([self.minimum, other.minimum[0]]),
            np.stack([self.loss, other.loss[0]]),
        )


def _round_group(weights: Floats, carried: Floats, factor: Floats, fmt: QuantFormat) -> _Rounded:
    """Returns the best of several trial scales, improved by the best one for its codes.

    carried: what errors of earlier columns add to those of this group, through the factor.
    """
    ideal = weights + np.linalg.solve(factor.T, carried)  # what would undo them altogether
    best = _round_columns(weights, carried, factor, fmt, *_trials(ideal, fmt)).best()
    refit = _refit(ideal, best.codes, factor, fmt)
    return best.joined(_round_columns(weights, carried, factor, fmt, *refit)).best()


def _trials(ideal: Floats, fmt: QuantFormat) -> tuple[Floats, Floats]:
    """Returns scales and minima [trials, N]."""
    low, high = ideal.min(axis=0), ideal.max(axis=0)
    part = fmt.zero_point / 8 if fmt.levels else (2**fmt.bits - 1) / 15
    if fmt.kind is ScaleKind.SINGLE:
        spans = np.array(_LEVEL_SPANS if fmt.levels else _SYMMETRIC_SPANS, np.float32)[:, None]
        scale = np.where(-low > high, low, high) / (spans * np.float32(part))
        return scale, np.zeros_like(scale)
    spans = np.array(_RANGE_SPANS, np.float32)[:, None]
    middle, width = (high + low) / 2, high - low
    return width / (spans * np.float32(part)), middle - width / 2 * (np.float32(15) / spans)


def _round_columns(
    weights: Floats, carried: Floats, factor: Floats, fmt: QuantFormat, scale: Floats, low: Floats
) -> _Rounded:
    """Returns the columns of a group rounded one after the other, for each of the given scales."""
    scale, low = _as_half(scale), _as_half(low)
    offset = low - scale * np.float32(fmt.zero_point)
    inverse = _divided(np.ones_like(scale), scale)
    codes = np.empty((GROUP, *scale.shape), np.uint8)
    values = np.empty(codes.shape, np.float32)
    errors = np.empty(codes.shape, np.float32)
    loss = np.zeros_like(scale)
    flat = errors.reshape(GROUP, -1)
    for j in range(GROUP):
        owed = (factor[:j, j] @ flat[:j]).reshape(scale.shape) + carried[j]
        if fmt.levels:
            codes[j] = fmt.nearest((weights[j] + owed / factor[j, j]) * inverse)
            np.multiply(fmt.steps(codes[j]), scale, out=values[j])
        else:
            code = np.rint((weights[j] + owed / factor[j, j] - offset) * inverse)
            np.clip(code, 0, 2**fmt.bits - 1, out=code)
            codes[j] = code
            np.multiply(code, scale, out=values[j])
            values[j] += offset
        np.subtract(weights[j], values[j], out=errors[j])
        owed += factor[j, j] * errors[j]
        loss += owed * owed
    return _Rounded(codes, values, scale, low, loss)


def _refit(
    ideal: Floats, codes: npt.NDArray[np.uint8], factor: Floats, fmt: QuantFormat
) -> tuple[Floats, Floats]:
    """Returns the scales and minima [1, N] of the least error for given codes."""
    levels = factor.T @ fmt.steps(codes)
    target = factor.T @ ideal
    product, square = (target * levels).sum(axis=0), (levels * levels).sum(axis=0)
    if fmt.kind is ScaleKind.SINGLE:
        return _divided(product, square)[None], np.zeros_like(product)[None]
    ones = factor.sum(axis=0)[:, None]
    cross, count, total = (
        (ones * levels).sum(axis=0),
        float((ones**2).sum()),
        (ones * target).sum(0),
    )
    determinant = square * count - cross * cross
    scale = _divided(product * count - total * cross, determinant)
    return scale[None], ((total - scale * cross) / np.float32(count))[None]


def _divided(a: Floats, b: Floats) -> Floats:
    result: Floats = np.divide(a, b, out=np.zeros_like(a), where=np.abs(b) > 1e-30)
    return result


def _as_half(values: Floats) -> Floats:
    limit = np.finfo(np.float16).max
    return np.clip(values, -limit, limit).astype(np.float16).astype(np.float32)
