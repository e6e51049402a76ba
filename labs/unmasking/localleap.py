"""LocalLeap: tokens that the model is sure of make it believe more of those near them.

Source: LocalLeap, local determinism propagation (arXiv 2510.07081).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from edgedec.runtime.config.unmasking import UnmaskConfig
from edgedec.runtime.decoding.unmasking import Guesses, MaskedModel, likeliest


class LocalLeap:
    """Decides anchors, likely tokens near them, and the likeliest where there is no anchor."""

    def __init__(self, anchor: float, relaxed: float, radius: int) -> None:
        self._anchor = anchor
        self._relaxed = relaxed
        self._radius = radius

    def choose(self, guesses: Guesses, n_due: int, progress: float) -> Mapping[int, int]:
        places, sure = np.asarray(guesses.places), guesses.probabilities >= self._anchor
        if not sure.any():
            return guesses.at(likeliest(guesses.probabilities, 1))
        distances = np.abs(places[:, None] - places[sure]).min(axis=1)
        near = (distances <= self._radius) & (guesses.probabilities >= self._relaxed)
        return guesses.at(np.flatnonzero(sure | near).tolist())


def maker(setting: UnmaskConfig, model: MaskedModel) -> Callable[[], LocalLeap]:
    """Returns what makes the rule of an output."""
    return partial(LocalLeap, setting.anchor, setting.relaxed, setting.radius)
