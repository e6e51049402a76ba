"""Pearson's test of counts against an exact distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Float64 = npt.NDArray[np.float64]
MIN_EXPECTED = 5.0


@dataclass(frozen=True)
class Fit:
    """statistic: of Pearson. p_value: how likely one as large is if the counts follow it."""

    statistic: float
    n_cells: int
    p_value: float

    def __str__(self) -> str:
        return f"chi-square {self.statistic:.1f} of {self.n_cells} cells, p = {self.p_value:.3g}"


def fit(counts: Float64, probs: Float64) -> Fit:
    """Returns how well ``probs``, which sum to 1, explain ``counts``.

    Cells that expect under five are pooled; if all of them together do, with the least other one.

    Source: survival function of chi-square as the upper regularised incomplete gamma function
    (Abramowitz and Stegun, 1964, 26.4.19), from PyTorch.

    Shapes: counts, probs [N] float64.
    """
    assert abs(probs.sum() - 1) < 1e-9
    expected = probs * counts.sum()
    order = np.argsort(-expected, kind="stable")
    counts, expected = counts[order], expected[order]
    n_large = int((expected >= MIN_EXPECTED).sum())
    if n_large < len(expected) and expected[n_large:].sum() < MIN_EXPECTED:
        n_large -= 1
    starts = range(min(n_large + 1, len(expected)))
    observed = np.add.reduceat(counts, starts)
    expected = np.add.reduceat(expected, starts)
    statistic = float(((observed - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    halves = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return Fit(statistic, len(expected), float(torch.special.gammaincc(halves[0], halves[1])))
