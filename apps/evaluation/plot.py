"""Draws an evaluation: quality against time, a point per setting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edgedec.apps.evaluation.tasks import METRICS
from edgedec.apps.measuring.pictures import COLOURS, explain_noisy, title_lines, use_style
from edgedec.runtime.methods.method_parts import AUTO, PLAIN

Fields = dict[str, float]


@dataclass(frozen=True)
class _Point:
    label: str
    is_lossless: bool
    time: Fields
    score: Fields


def draw(document: dict[str, Any], path: Path) -> None:
    """Writes the picture: scores over time, with the intervals of both.

    Time is in seconds per sample; of a frontier in parts of plain decoding's, problem by problem,
    which is known much better.
    """
    use_style()
    metric, swept = METRICS[document["task"]][0], document["frontier"]
    scale = 100.0 if metric.is_share else 1.0
    figure = Figure(figsize=(10.0, 5.2), layout="constrained")
    axes = figure.subplots()
    points = _settings(document, metric.name) if swept is None else _swept(swept)
    is_noisy = "noise" in document and document["noise"]["is_noisy"]
    for i, point in enumerate(points):
        _draw_point(axes, point, COLOURS[i % len(COLOURS)], scale, is_noisy)
    if is_noisy:
        explain_noisy(axes, marker="o", mfc="white", ls="")
    if swept is not None:
        _draw_marks(axes, swept, scale)
    facts = document["settings"][0]["facts"]
    title = f"{facts['bundle']}, {document['task']}, {facts['threads']} threads"
    axes.set(
        xlabel="seconds per sample" if swept is None else "time (plain target model: 1)",
        ylabel=f"{metric.name} (%)" if metric.is_share else metric.name,
        title=title_lines(title, 6.5),
    )
    axes.set_xlim(left=0)
    if metric.is_share:
        _show_percent(axes)
    axes.grid(visible=True)
    figure.legend(loc="outside right upper")
    figure.savefig(path)


def _show_percent(axes: Axes) -> None:
    """Shows ten percent or more, so that equal scores do not look apart, and none above 100."""
    low, high = axes.get_ylim()
    middle, half = (low + high) / 2, max((high - low) / 2, 5.0)
    axes.set_ylim(max(-0.3, middle - half), min(100.3, middle + half))


def _settings(document: dict[str, Any], metric: str) -> Iterator[_Point]:
    for row in document["settings"]:
        score, seconds = row["metrics"][metric], row["seconds_per_sample"]
        if score is not None and seconds is not None:
            time = {"value": seconds, "low": seconds, "high": seconds}
            yield _Point(row["label"], row["lossless"], time, score)


def _swept(frontier: dict[str, Any]) -> Iterator[_Point]:
    for row in frontier["settings"]:
        if row["score"] is not None and row["time_of_target"] is not None:
            yield _Point(row["label"], row["lossless"], row["time_of_target"], row["score"])


def _draw_point(axes: Axes, point: _Point, colour: str, scale: float, is_noisy: bool) -> None:
    axes.errorbar(
        point.time["value"],
        scale * point.score["value"],
        xerr=_bars(point.time, 1.0),
        yerr=_bars(point.score, scale),
        fmt="o" if point.is_lossless else "s",
        capsize=3,
        elinewidth=1,
        color=colour,
        mfc="white" if is_noisy else colour,
        label=point.label + ("" if point.is_lossless else " (approximate)"),
    )


def _draw_marks(axes: Axes, frontier: dict[str, Any], scale: float) -> None:
    """Draws what an approximate setting has to beat: it should lie above and to the left."""
    rows = {row["label"]: row for row in frontier["settings"]}
    target, auto = (rows[frontier["references"][name]] for name in (PLAIN, AUTO))
    if target["score"] is None or auto["time_of_target"] is None:
        return
    kept = scale * frontier["keep"] * target["score"]["value"]
    time, grey = auto["time_of_target"]["value"], "#555555"
    axes.axhline(kept, ls=":", lw=1, c=grey, label=f"{frontier['keep']:.0%} of the target model")
    axes.axvline(time, ls="--", lw=1, c=grey, label="lossless auto's time")


def _bars(interval: Fields, scale: float) -> list[list[float]]:
    """Returns how far an interval reaches to both sides.

    A percentile interval may leave its value out by a hair.
    """
    value, low, high = (scale * interval[key] for key in ("value", "low", "high"))
    return [[max(0.0, value - low)], [max(0.0, high - value)]]
