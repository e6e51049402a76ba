"""The style of all pictures: readable at half their size, the same colours in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.rcsetup import cycler
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import Bbox

COLOURS = (
    "#1f5fbf", "#d1495b", "#e09f3e", "#3c8d5a", "#7a5195", "#2a9d8f", "#8d6346", "#777777",
    "#b5179e", "#3a0ca3", "#6a994e", "#bc6c25",
)  # fmt: skip

_CHARACTER_EM = 0.56
"""Average width of a character, in sizes of its font."""

NOISY = "noisy: other programs ran"


def use_style() -> None:
    """Makes the pictures drawn from now on look alike. No window is opened for them."""
    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {
            "axes.prop_cycle": cycler("color", COLOURS),
            "font.size": 12,
            "axes.titlesize": 12,
            "axes.labelsize": 12,
            "legend.fontsize": 10,
            "legend.frameon": False,
            "lines.linewidth": 2,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "grid.alpha": 0.3,
            "savefig.dpi": 150,
            "svg.fonttype": "none",  # text stays text
        }
    )


def title_lines(text: str, width_inches: float, size: float = 12) -> str:
    """Returns a title broken into lines that a picture of this width holds.

    size: of the font, in points.
    """
    return fill(text, max(20, int(72 * width_inches / (_CHARACTER_EM * size))))


def plain_ticks(axes: Axes) -> None:
    """Writes the numbers of logarithmic axes as plain numbers, and a few between powers of ten."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def mark_noisy(axes: Axes, xs: Sequence[float], ys: Sequence[float], size: float = 6) -> None:
    """Empties the points of results that other programs disturbed, and says so in the legend.

    It is called once for all that a picture has of them, after their full points were drawn.
    """
    if xs:
        axes.plot(xs, ys, "o", color="#555555", mfc="white", ms=size, label=NOISY, zorder=3)


def explain_noisy(axes: Axes, **look: Any) -> None:
    """Says in the legend that results of this look were disturbed by other programs."""
    axes.plot([], [], color="#555555", label=NOISY, **look)


PICTURES = sorted(FigureCanvasBase.get_supported_filetypes())
"""Endings of the files that can be drawn."""


_LABEL_OFFSETS = [(6, 6), (6, -13), (6, 17), (6, -24), (-36, 6), (-36, -13), (6, 28), (6, -35)]
"""Where a label may be, from its point; the first is the best. Units: points."""


def label_points(axes: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Writes the name of each point beside it, where neither a name nor a point is yet."""
    taken = [*_marker_boxes(axes), *(text.get_window_extent() for text in axes.texts)]
    for x, y, name in points:
        for offset in _LABEL_OFFSETS:
            label = axes.annotate(
                name, (x, y), xytext=offset, textcoords="offset points", fontsize=8
            )
            place = label.get_window_extent()
            if not place.count_overlaps(taken):
                break
            label.remove()
        else:
            label = axes.annotate(name, (x, y), fontsize=8)
        taken.append(label.get_window_extent())


def _marker_boxes(axes: Axes) -> list[Bbox]:
    """Returns where the points of a picture are drawn, in pixels."""
    boxes = []
    for line in axes.lines:
        if line.get_marker() in ("None", None, ""):
            continue
        radius = line.get_markersize() * axes.figure.dpi / 72 / 2
        for x, y in axes.transData.transform(np.column_stack(line.get_data())):
            boxes.append(Bbox.from_bounds(x - radius, y - radius, 2 * radius, 2 * radius))
    return boxes
