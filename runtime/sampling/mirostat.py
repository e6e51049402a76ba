"""Mirostat: sampling that keeps the average surprise of tokens near a target.

Source: Basu et al., Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity,
2021, algorithm 1; version 2 as ggml-org/llama.cpp defines it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

_N_ZIPF = 100
"""Likeliest tokens from which version 1 estimates the exponent of Zipf's law."""


@dataclass(frozen=True)
class Cut:
    """What a step may give. kept: indices. log2: of each score's probability before the cut."""

    kept: npt.NDArray[np.intp]
    log2: Float64

    def surprise(self, index: int, version: int) -> float:
        """Returns the surprise of the score ``index``, which was drawn. Units: bits.

        Version 1 takes its probability before the cut, version 2 that after it.
        """
        bits = float(self.log2[index])
        if version == 2:
            bits -= float(np.log2(np.exp2(self.log2[self.kept]).sum()))
        return -bits


def cut(scores: Float64, version: int, mu: float) -> Cut:
    """Returns what is left where the surprise should be at most ``mu`` bits.

    Shapes: scores [V] float64 log-probabilities, up to a constant.
    """
    largest = scores.max()
    log2 = (scores - largest - math.log(np.exp(scores - largest).sum())) / math.log(2)
    if version == 1:
        n = _n_kept(log2, mu)
        kept = np.sort(np.argsort(-log2, kind="stable")[:n])
    else:
        kept = np.flatnonzero(-log2 <= mu)
        if not len(kept):
            kept = np.array([int(scores.argmax())])
    return Cut(kept, log2)


def _n_kept(log2: Float64, mu: float) -> int:
    """Returns how many of the likeliest tokens version 1 keeps."""
    n = len(log2)
    m = min(_N_ZIPF, n - 1)
    top = np.sort(np.partition(log2, n - 1 - m)[n - 1 - m :])[::-1]
    known = np.isfinite(top)
    top = top[known]
    if len(top) < 2:
        return 1
    ranks = np.arange(1, len(top))
    t = np.log((ranks + 1) / ranks)
    b = (top[:-1] - top[1:]) * math.log(2)
    exponent = float((t * b).sum() / (t * t).sum())
    if exponent <= 0:  # all are alike
        return n
    epsilon = exponent - 1
    spread = math.log(n) if abs(epsilon) < 1e-6 else (1 - n**-epsilon) / epsilon
    log_k = (mu * math.log(2) - math.log(spread)) / exponent
    return int(min(max(round(math.exp(min(log_k, 50.0))), 1), n))
