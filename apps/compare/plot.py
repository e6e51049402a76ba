"""A comparison as a picture: ratios as bars, and a roofline or the quality against time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edgedec.apps.bench.plot import label_points
from edgedec.apps.compare.charts import bars, frontier, noisy_bars, roofs, turned
from edgedec.apps.compare.tables import is_wide
from edgedec.apps.measuring.pictures import explain_noisy, mark_noisy, use_style

Document = dict[str, Any]
Points = list[tuple[float, float, str]]
"""Places to write a name at."""


def draw(document: Document, path: Path) -> None:
    """Writes the picture."""
    use_style()
    panels = [
        panel
        for panel, is_wanted in (
            (_draw_bars, len(document["columns"]) > 1 and document["kind"] != "eval"),
            (_draw_roofs, bool(roofs(document))),
            (_draw_frontier, bool(frontier(document))),
        )
        if is_wanted
    ] or [_draw_bars]
    height = max(4.8, 0.28 * len(document["columns"])) if is_wide(document) else 4.8
    figure = Figure(figsize=(5.8 * len(panels), height), layout="constrained")
    places = np.ravel(figure.subplots(1, len(panels)))
    named = [panel(axes, document) for axes, panel in zip(places, panels, strict=True)]
    figure.draw_without_rendering()  # now places are final, and labels can keep clear of others
    for axes, points in zip(places, named, strict=True):
        label_points(axes, points)
    figure.savefig(path)


def _draw_bars(axes: Axes, document: Document) -> Points:
    if is_wide(document):
        return _draw_long_bars(axes, document)
    found, noisy = bars(document), noisy_bars(document)
    disturbed: list[tuple[float, float]] = []
    tests = list(dict.fromkeys(test for _, values in found for test, _ in values))
    width = 0.8 / max(1, len(found))
    for i, (name, values) in enumerate(found):
        places = [tests.index(test) + (i - (len(found) - 1) / 2) * width for test, _ in values]
        axes.bar(places, [ratio for _, ratio in values], width, label=name)
        disturbed += [
            (x, ratio)
            for x, (test, ratio) in zip(places, values, strict=True)
            if (name, test) in noisy
        ]
    mark_noisy(axes, [x for x, _ in disturbed], [y for _, y in disturbed])
    axes.axhline(1, color="#555555", lw=1, ls=":")
    axes.set_xticks(range(len(tests)), tests, rotation=30, ha="right")
    axes.set(ylabel="times as good as the base", title=f"Base: {document['base']}")
    axes.legend()
    axes.grid(visible=True, axis="y")
    return []


def _draw_long_bars(axes: Axes, document: Document) -> Points:
    """Draws a line of bars per column, the best column of the first test on top."""
    found, noisy = turned(bars(document)), noisy_bars(document)
    disturbed: list[tuple[float, float]] = []
    names = list(dict.fromkeys(name for _, values in found for name, _ in values))
    width = 0.8 / max(1, len(found))
    for i, (test, values) in enumerate(found):
        places = [names.index(name) + (i - (len(found) - 1) / 2) * width for name, _ in values]
        axes.barh(places, [ratio for _, ratio in values], width, label=test)
        disturbed += [
            (ratio, y)
            for y, (name, ratio) in zip(places, values, strict=True)
            if (name, test) in noisy
        ]
    mark_noisy(axes, [x for x, _ in disturbed], [y for _, y in disturbed])
    axes.axvline(1, color="#555555", lw=1, ls=":")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel="times as good as the base", title=f"Base: {document['base']}")
    axes.legend()
    axes.grid(visible=True, axis="x")
    return []


def _draw_roofs(axes: Axes, document: Document) -> Points:
    found = roofs(document)
    for i, roof in enumerate(found):
        xs = [x for x, _, _ in roof.points]
        line = np.geomspace(min(xs) / 2, 2 * max(*xs, roof.int8_gmac_s / roof.read_gb_s), 100)
        colour = f"C{i}"
        axes.loglog(line, np.minimum(line * roof.read_gb_s, roof.int8_gmac_s), color=colour)
        axes.loglog(xs, [y for _, y, _ in roof.points], "o", color=colour, label=roof.name)
        hollow = [(x, y) for x, y, name in roof.points if name in roof.noisy]
        axes.plot([x for x, _ in hollow], [y for _, y in hollow], "o", color=colour, mfc="white")
    if any(roof.noisy for roof in found):
        explain_noisy(axes, marker="o", mfc="white", ls="")
    axes.set(xlabel="multiply-accumulates per byte of weights read", ylabel="GMAC/s",
             title="Roofline")  # fmt: skip
    axes.legend()
    axes.grid(visible=True, which="major")
    return list(found[0].points) if len(found) == 1 else []


def _draw_frontier(axes: Axes, document: Document) -> Points:
    points = frontier(document)
    for point in points:
        axes.plot(point.seconds, point.score, "o", mfc="white" if point.is_noisy else None)
    if any(point.is_noisy for point in points):
        explain_noisy(axes, marker="o", mfc="white", ls="")
        axes.legend()
    axes.set(xlabel="seconds per answer", ylabel=points[0].score_name, title="Quality and time")
    axes.set_xlim(left=0)
    axes.grid(visible=True)
    return [(point.seconds, point.score, point.name) for point in points]
