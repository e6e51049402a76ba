"""Samples as numbers that intervals are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgedec.apps.evaluation.samples import Sample
from edgedec.apps.evaluation.tasks import Metric
from edgedec.apps.measuring.intervals import Float64, Interval, bootstrap

Fields = dict[str, float] | None
"""An interval, JSON-ready; None where there is no value."""


def columns_of(samples: Sequence[Sample], metric: Metric) -> Float64:
    """Returns weighted values and weights; the ratio of their means is the weighted mean.

    Samples without the metric have no weight. Shapes: [2, samples].
    """
    values = np.array([sample.metrics.get(metric.key, 0.0) for sample in samples], np.float64)
    weights = [sample.weight * (metric.key in sample.metrics) for sample in samples]
    return np.stack([values * weights, np.array(weights, np.float64)])


def score_of(metric: Metric) -> Callable[[Any], Any]:
    """Returns what turns the means of `columns_of` into the metric."""
    return lambda means: metric.of(means[0] / means[1])


def score(samples: Sequence[Sample], metric: Metric) -> Fields:
    """Returns the metric of samples."""
    return fields_of(bootstrap(columns_of(samples, metric), score_of(metric)))


def kept(base: Sequence[Sample], other: Sequence[Sample], metric: Metric) -> Fields:
    """Returns the score of ``other`` in parts of that of ``base``, over the same problems."""
    of = score_of(metric)
    return fields_of(
        bootstrap(_both(base, other, metric), lambda means: of(means[2:]) / of(means[:2]))
    )


def difference(base: Sequence[Sample], other: Sequence[Sample], metric: Metric) -> Fields:
    """Returns the score of ``other`` less that of ``base``, over the same problems."""
    of = score_of(metric)
    return fields_of(
        bootstrap(_both(base, other, metric), lambda means: of(means[2:]) - of(means[:2]))
    )


def time_ratio(base: Sequence[Sample], other: Sequence[Sample]) -> Fields:
    """Returns the time of ``other`` in parts of that of ``base``, over the same problems."""
    times = np.array([[s.seconds for s in base], [s.seconds for s in other]], np.float64)
    return fields_of(bootstrap(times, lambda means: means[1] / means[0]))


def flips(base: Sequence[Sample], other: Sequence[Sample], metric: Metric) -> Fields:
    """Returns the share of problems that one setting solves and the other does not.

    None where a problem is not solved or unsolved.

    Source: Accuracy is Not All You Need (arXiv:2407.09141).
    """
    if not metric.is_share:
        return None
    pairs = zip(base, other, strict=True)
    changed = [abs(a.metrics[metric.key] - b.metrics[metric.key]) for a, b in pairs]
    return fields_of(bootstrap(np.array([changed], np.float64), lambda means: means[0]))


@dataclass(frozen=True)
class Followed:
    """How schemas were followed.

    finished: answers that were not cut off, and of these valid. grammar_ms: what grammars take for
    a token, on average over answers, and at most of one. compile_ms: median.
    """

    n_compiled: int
    n_finished: int
    n_valid: int
    grammar_ms: float
    most_grammar_ms: float
    compile_ms: float


def followed(samples: Sequence[Sample]) -> Followed | None:
    """Returns how schemas were followed; None where there was none that compiled."""
    compiled = [sample for sample in samples if "grammar_ms" in sample.metrics]
    if not compiled:
        return None
    finished = [sample for sample in compiled if sample.finish_reason == "stop"]
    grammar_ms = [sample.metrics["grammar_ms"] for sample in compiled]
    return Followed(
        len(compiled),
        len(finished),
        sum(sample.metrics["valid"] == 1 for sample in finished),
        float(np.mean(grammar_ms)),
        max(grammar_ms),
        float(np.median([sample.metrics["compile_ms"] for sample in compiled])),
    )


def tokens_per_s(samples: Sequence[Sample]) -> float | None:
    """Returns the rate after the first token of each sample."""
    decode_s = sum(sample.decode_s for sample in samples)
    n_later = sum(max(0, sample.n_new_tokens - 1) for sample in samples)
    return n_later / decode_s if decode_s > 0 else None


def tokens_by_origin(samples: Sequence[Sample]) -> dict[str, int]:
    """Returns how many tokens each drafter or model gave."""
    origins: dict[str, int] = {}
    for sample in samples:
        for origin, n in sample.tokens_by_origin.items():
            origins[origin] = origins.get(origin, 0) + n
    return origins


def fields_of(interval: Interval | None) -> Fields:
    """Returns an interval, JSON-ready."""
    return None if interval is None else interval.to_dict()


def interval_text(interval: Fields, is_share: bool = False, digits: int = 3, sign: str = "") -> str:
    """Returns ``0.81 (0.75 to 0.88)``, nothing where there is no value."""
    if interval is None:
        return ""
    form = f"{sign}.1%" if is_share else f"{sign}.{digits}f"
    value = format(interval["value"], form)
    if "low" not in interval:
        return value
    return f"{value} ({format(interval['low'], form)} to {format(interval['high'], form)})"


def number_text(value: float | None, form: str) -> str:
    """Returns a number, nothing where there is none."""
    return "" if value is None else format(value, form)


def _both(base: Sequence[Sample], other: Sequence[Sample], metric: Metric) -> Float64:
    return np.concatenate([columns_of(base, metric), columns_of(other, metric)])
