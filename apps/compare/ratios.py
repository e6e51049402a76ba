"""How many times as good one column is as another, and how sure that is.

A ratio gets an interval where the measurements allow one: values of one run, which were measured
side by side, or three runs or more of each side. Two separate runs have none: the machine may have
been slower during one of them, and no repetition within a run shows that.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.apps.compare.columns import Column
from edgedec.apps.measuring.intervals import bootstrap
from edgedec.apps.results.result import Quantity

FEW = 3
"""Repetitions, or runs, that an interval needs."""

_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom."""

SAME_RUN = "measured side by side"
RUNS = "over several runs"
SEPARATE = "separate runs"
DEVICES = "across devices"
SAME_PROBLEMS = "over the same problems"


@dataclass(frozen=True)
class Ratio:
    """How many times as good a value is as the base's: above 1 is better. Scores: the difference.

    low, high: a 95 % interval; None where the measurements allow none. basis: what it rests on.
    """

    value: float
    low: float | None
    high: float | None
    basis: str
    is_difference: bool = False


def central(quantity: Quantity) -> float:
    """Returns a quantity's value: a weighted mean of scores, else the median of repetitions."""
    if is_score(quantity):
        return float(np.average(quantity.values, weights=quantity.weights))
    return statistics.median(quantity.values)


def is_score(quantity: Quantity) -> bool:
    """Returns whether values are scores of problems, not speeds or times."""
    return quantity.unit in ("share", "bits")


def value_of(column: Column, name: str) -> float | None:
    """Returns the value of a column: the median over its runs; None if it was not measured."""
    centres = [central(quantity) for quantity in column.quantities(name)]
    return statistics.median(centres) if centres else None


def compare(base: Column, other: Column, name: str, allow_noise: bool) -> Ratio | str | None:
    """Returns how much better ``other`` is in a quantity; the reason if that cannot be said.

    None: it was not measured in both.
    """
    mine, theirs = base.quantities(name), other.quantities(name)
    if not mine or not theirs:
        return None
    if not allow_noise and any(quantity.is_noisy for quantity in (*mine, *theirs)):
        return "noisy"
    if is_score(mine[0]):
        return _difference(mine[0], theirs[0])
    if any(value <= 0 for quantity in (*mine, *theirs) for value in quantity.values):
        return "has values of 0 or less"
    return _ratio(base, other, mine, theirs)


def _ratio(
    base: Column, other: Column, mine: Sequence[Quantity], theirs: Sequence[Quantity]
) -> Ratio:
    sign = -1.0 if mine[0].is_lower_better else 1.0
    if base.sources == other.sources and len(mine) == 1:
        n = min(len(mine[0].values), len(theirs[0].values))
        if n == len(mine[0].values) == len(theirs[0].values):
            logs = [
                sign * (math.log(b) - math.log(a))
                for a, b in zip(mine[0].values, theirs[0].values, strict=True)
            ]
            half = None if n < FEW else _t(n - 1) * statistics.stdev(logs) / math.sqrt(n)
            return _made(statistics.fmean(logs), half, SAME_RUN)
    a, b = ([math.log(central(q)) for q in logs] for logs in (mine, theirs))
    middle = sign * (statistics.fmean(b) - statistics.fmean(a))
    if min(len(a), len(b)) >= FEW:
        return _made(middle, _welch(a, b), RUNS)
    is_one_device = base.result.place == other.result.place
    return _made(middle, None, SEPARATE if is_one_device else DEVICES)


def _made(log: float, half: float | None, basis: str) -> Ratio:
    low, high = (None, None) if half is None else (math.exp(log - half), math.exp(log + half))
    return Ratio(math.exp(log), low, high, basis)


def _welch(a: Sequence[float], b: Sequence[float]) -> float:
    """Returns half the width of the 95 % interval of a difference of means.

    Source: Welch, The generalization of "Student's" problem, 1947.
    """
    va, vb = (statistics.variance(x) / len(x) for x in (a, b))
    if va + vb == 0:
        return 0.0
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return _t(int(freedom)) * math.sqrt(va + vb)


def _t(freedom: int) -> float:
    return _T_975[min(max(freedom, 1), len(_T_975)) - 1]


def _difference(mine: Quantity, theirs: Quantity) -> Ratio | str:
    """Returns how much the score differs over the same problems."""
    if len(mine.values) != len(theirs.values):
        return "other problems"
    weights = mine.weights or (1.0,) * len(mine.values)
    columns = np.array([
        [w * a for w, a in zip(weights, mine.values, strict=True)],
        [w * b for w, b in zip(weights, theirs.values, strict=True)],
        weights,
    ])  # fmt: skip
    interval = bootstrap(columns, lambda means: (means[1] - means[0]) / means[2])
    if interval is None:
        return "no value"
    is_wide = len(mine.values) >= FEW
    low, high = (interval.low, interval.high) if is_wide else (None, None)
    return Ratio(interval.value, low, high, SAME_PROBLEMS, is_difference=True)
