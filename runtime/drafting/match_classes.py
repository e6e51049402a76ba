"""Classes of drafts that copy what followed a match: by its length, and by how far they go on."""

from __future__ import annotations

from bisect import bisect_right

_LENGTH_STARTS = (1, 2, 3, 4, 6, 9)
_LENGTH_PRIORS = (0.25, 0.45, 0.6, 0.75, 0.85, 0.92)
_DEPTH_STARTS = (1, 2, 3, 5)
_DEPTH_DOUBTS = (1.0, 0.8, 0.65, 0.55)  # each accepted token makes the match longer


def match_class(length: int, depth: int) -> int:
    """Returns the class of a draft ``depth`` tokens after a match of ``length`` tokens."""
    row = bisect_right(_LENGTH_STARTS, length) - 1
    return row * len(_DEPTH_STARTS) + bisect_right(_DEPTH_STARTS, depth) - 1


def match_priors(scale: float = 1.0) -> list[float]:
    """Returns the acceptance rate that each class begins with, times ``scale``."""
    return [scale * (1 - (1 - p) * doubt) for p in _LENGTH_PRIORS for doubt in _DEPTH_DOUBTS]
