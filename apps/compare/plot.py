"""A comparison as a picture: ratios as bars, and a roofline or the quality against time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from edgedec.apps.compare.charts import bars, frontier, noisy_bars, roofs, turned
from edgedec.apps.compare.tables import is_wide
from edgedec.apps.measuring.pictures import (
    explain_noisy,
    label_points,
    mark_noisy,
    plain_ticks,
    title_lines,
    use_style,
)

_LEGEND_INCHES, _LEGEND_SIZE = 3.4, 9
"""Width of a legend's text, and its font size in points."""

_PANEL_INCHES, _NAME_INCHES, _LINE_INCHES = 5.8, 3.0, 0.45
"""Width of a panel, that of names of columns beside bars, and what a name needs in height."""

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
    widths = [_PANEL_INCHES] * len(panels)
    if is_wide(document) and panels[0] is _draw_bars:
        widths[0] += _NAME_INCHES
    figure = Figure(figsize=(sum(widths), _height(document)), layout="constrained")
    places = np.ravel(figure.subplots(1, len(panels), width_ratios=widths))
    named = [panel(axes, document) for axes, panel in zip(places, panels, strict=True)]
    figure.draw_without_rendering()  # now places are final, and labels can keep clear of others
    for axes in places:
        _lower_legend(axes)
    figure.draw_without_rendering()
    for axes, points in zip(places, named, strict=True):
        label_points(axes, points)
    figure.savefig(path)


def _height(document: Document) -> float:
    """Returns the height of the picture in inches: that of the bars, and of names below them."""
    n_columns = len(document["columns"])
    if not is_wide(document):
        return 4.8 + _LINE_INCHES * n_columns
    return max(4.8, _LINE_INCHES * n_columns) + _LINE_INCHES * len(roofs(document))


def _draw_bars(axes: Axes, document: Document) -> Points:
    """Draws bars by test; of many columns a line each, the best of the first test on top."""
    is_long = is_wide(document)
    figure_bars, noisy = bars(document), noisy_bars(document)
    colours = {name: f"C{i}" for i, (name, _) in enumerate(figure_bars)}  # as in the roofline
    figure_bars = (
        turned(figure_bars)
        if is_long
        else [bar for bar in figure_bars if bar[0] != document["base"]]
    )
    labels = list(dict.fromkeys(label for _, values in figure_bars for label, _ in values))
    width = 0.8 / max(1, len(figure_bars))
    draw_bars = axes.barh if is_long else axes.bar
    disturbed: list[tuple[float, float]] = []
    for i, (group, values) in enumerate(figure_bars):
        places = [
            labels.index(label) + (i - (len(figure_bars) - 1) / 2) * width for label, _ in values
        ]
        colour = colours.get(group, f"C{i}")
        draw_bars(places, [ratio for _, ratio in values], width, label=group, color=colour)
        disturbed += [
            (place, ratio)
            for place, (label, ratio) in zip(places, values, strict=True)
            if ((label, group) if is_long else (group, label)) in noisy
        ]
    where, ratios = [place for place, _ in disturbed], [ratio for _, ratio in disturbed]
    if is_long:
        mark_noisy(axes, ratios, where)
        axes.axvline(1, color="#555555", lw=1, ls=":")
        names = [title_lines(label, _NAME_INCHES, _LEGEND_SIZE) for label in labels]
        axes.set_yticks(range(len(labels)), names, fontsize=_LEGEND_SIZE)
        axes.invert_yaxis()
        axes.set_xlabel("times as good as the base")
    else:
        mark_noisy(axes, where, ratios)
        axes.axhline(1, color="#555555", lw=1, ls=":")
        axes.set_xticks(range(len(labels)), labels, rotation=30, ha="right")
        axes.set_ylabel("times as good as the base")
    axes.set_title(title_lines(f"The line at 1: {document['base']}", 5.0))
    _put_legend_below(axes)
    axes.grid(visible=True, axis="x" if is_long else "y")
    return []


def _draw_roofs(axes: Axes, document: Document) -> Points:
    figure_roofs = roofs(document)
    for i, roof in enumerate(figure_roofs):
        xs = [x for x, _, _ in roof.points]
        line = np.geomspace(min(xs) / 2, 2 * max(*xs, roof.int8_gmac_s / roof.read_gb_s), 100)
        colour = f"C{i}"
        axes.loglog(line, np.minimum(line * roof.read_gb_s, roof.int8_gmac_s), color=colour)
        axes.loglog(xs, [y for _, y, _ in roof.points], "o", color=colour, label=roof.name)
        hollow = [(x, y) for x, y, name in roof.points if name in roof.noisy]
        axes.plot([x for x, _ in hollow], [y for _, y in hollow], "o", color=colour, mfc="white")
    if any(roof.noisy for roof in figure_roofs):
        explain_noisy(axes, marker="o", mfc="white", ls="")
    axes.set(xlabel="multiply-accumulates per byte of weights read", ylabel="GMAC/s",
             title="Roofline")  # fmt: skip
    _put_legend_below(axes)
    axes.grid(visible=True, which="major")
    plain_ticks(axes)
    return list(figure_roofs[0].points)  # the other columns have theirs beside them


def _put_legend_below(axes: Axes) -> None:
    """Names of columns are long: within the axes they would hide what is drawn."""
    handles, names = axes.get_legend_handles_labels()
    axes.legend(
        handles,
        [title_lines(name, _LEGEND_INCHES, _LEGEND_SIZE) for name in names],
        fontsize=_LEGEND_SIZE,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.24),
        borderaxespad=0,
    )


def _lower_legend(axes: Axes) -> None:
    """Moves the legend below the names of the axis, however long they are."""
    legend, names = axes.get_legend(), axes.xaxis.get_tightbbox()
    if legend is None or names is None or not _is_below(legend, axes):
        return
    _, low = axes.transAxes.inverted().transform((names.x0, names.y0))
    legend.set_bbox_to_anchor((0.5, low - 0.06), axes.transAxes)


def _is_below(legend: Legend, axes: Axes) -> bool:
    return bool(legend.get_window_extent().y1 < axes.get_window_extent().y0)


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
