"""Prophet: all masked tokens are decided at once when the best of each is far ahead of the second.

Source: Prophet, early commit by the confidence gap (arXiv 2508.19982). Its gap is that of the
answer's tokens; here it is that of the block's masked ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import numpy.typing as npt

from edgedec.runtime.config.unmasking import UnmaskConfig
from edgedec.runtime.decoding.unmasking import Guesses, MaskedModel, likeliest
from edgedec.runtime.sequences.row_stats import RowStats


class Prophet:
    """Decides as many as are due, or all; less of a gap suffices the more steps were done."""

    def __init__(self, mask_token: int, gaps: tuple[float, float, float]) -> None:
        self._mask_token = mask_token
        self._gaps = gaps

    def choose(self, guesses: Guesses, n_due: int, progress: float) -> Mapping[int, int]:
        min_gap = self._gaps[min(2, int(3 * progress))]
        if logit_gaps(guesses.stats, self._mask_token).mean() >= min_gap:
            return guesses.at(range(len(guesses.places)))
        return guesses.at(likeliest(guesses.probabilities, n_due))


def logit_gaps(stats: RowStats, mask_token: int) -> npt.NDArray[np.float32]:
    """Returns how far the best logit of each row is ahead of the second, the mask's left out."""
    values = np.where(stats.top_ids == mask_token, -np.inf, stats.top_logits)
    best = np.sort(values, axis=1)[:, -2:]
    gaps: npt.NDArray[np.float32] = best[:, 1] - best[:, 0]
    return gaps


def maker(setting: UnmaskConfig, model: MaskedModel) -> Callable[[], Prophet]:
    """Returns what makes the rule of an output."""
    return partial(Prophet, model.mask_token, (setting.early, setting.middle, setting.late))
