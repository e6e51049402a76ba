"""What repeated measurements of one thing say, in a few numbers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from edgedec.models.errors import ConfigError


@dataclass(frozen=True)
class Summary:
    """``std`` is the sample standard deviation; 0 for a single value."""

    n: int
    mean: float
    std: float
    median: float
    minimum: float
    maximum: float

    @property
    def spread(self) -> float:
        """Standard deviation as a share of the mean."""
        return self.std / self.mean if self.mean else 0.0

    def to_dict(self) -> dict[str, float]:
        """Returns mean, std and median, JSON-ready."""
        return {"mean": self.mean, "std": self.std, "median": self.median}


def summarize(values: Sequence[float]) -> Summary:
    """Returns the summary of at least one value."""
    if not values:
        raise ConfigError("there is nothing to summarize, expected at least one repetition")
    return Summary(
        n=len(values),
        mean=statistics.fmean(values),
        std=statistics.stdev(values) if len(values) > 1 else 0.0,
        median=statistics.median(values),
        minimum=min(values),
        maximum=max(values),
    )
