"""Draws a run of `edgedec bench`: how near the machine's limits, and what more rows cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edgedec.apps.bench.jobs import MULTIPLY, READ, Test
from edgedec.apps.bench.work import Work, bound
from edgedec.apps.measuring.pictures import (
    COLOURS,
    label_points,
    mark_noisy,
    plain_ticks,
    title_lines,
    use_style,
)

_LIMIT_COLOUR = "#555555"
_WIDTH = 11.0
"""Units: inches."""
_TITLE_SIZE = 14
"""Units: points."""


def draw(document: dict[str, Any], path: Path, work: Work | None) -> None:
    """Writes the picture: roofline on the left, cost of a verify pass on the right."""
    use_style()
    figure = Figure(figsize=(_WIDTH, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_roofline(left, document, work)
    _draw_costs(right, document, work)
    title = (
        f"{document['model']} on {document['device']['model']}, {document['threads']} threads, "
        f"{document['limits']['isa']}"
    )
    figure.suptitle(title_lines(title, _WIDTH, _TITLE_SIZE), fontsize=_TITLE_SIZE)
    figure.draw_without_rendering()  # now places are final, and labels can keep clear of others
    label_points(left, _points(document, work))
    figure.savefig(path)


def _draw_roofline(axes: Axes, document: dict[str, Any], work: Work | None) -> None:
    read_gb_s, int8_gmac_s = document["limits"][READ], document["limits"][MULTIPLY]
    points = _points(document, work)
    knee = int8_gmac_s / read_gb_s
    x = np.geomspace(min(1.0, *(p[0] for p in points), knee) / 2, 4 * max(knee, *_xs(points)), 200)
    axes.loglog(x, np.minimum(x * read_gb_s, int8_gmac_s), color=_LIMIT_COLOUR, lw=2)
    middle = float(x[0] ** 0.25 * knee**0.75)  # far up the slope: the label is inside the axes
    axes.annotate(
        f"read {read_gb_s:.3g} GB/s",
        (middle, middle * read_gb_s),
        xytext=(-8, 8),
        textcoords="offset points",
        color=_LIMIT_COLOUR,
        ha="right",
    )
    axes.text(
        x[-1], 1.12 * int8_gmac_s, f"int8 {int8_gmac_s:.0f} GMAC/s", color=_LIMIT_COLOUR, ha="right"
    )
    axes.plot([p[0] for p in points], [p[1] for p in points], "o", color=COLOURS[0], ms=6)
    rows = [row for row in document["rows"] if row["runtime"] == "edgedec"]
    noisy = {row["test"] for row in rows if row["is_noisy"]}
    disturbed = [point for point in points if point[2] in noisy]
    mark_noisy(axes, [p[0] for p in disturbed], [p[1] for p in disturbed])
    axes.set(
        title="Roofline: edgedec",
        xlabel="multiply-accumulates per byte of weights read",
        ylabel="GMAC/s",
        ylim=(min([x[0] * read_gb_s, *(p[1] for p in points)]) / 2, 2.2 * int8_gmac_s),
    )
    plain_ticks(axes)
    axes.grid(visible=True, which="major")


def _points(document: dict[str, Any], work: Work | None) -> list[tuple[float, float, str]]:
    """Returns intensity, GMAC/s and name of every row of edgedec's whose work is known."""
    points = []
    for row in document["rows"]:
        if work is None or row["runtime"] != "edgedec":
            continue
        n_bytes, macs = work.of(Test(row["kind"], row["n"], row["depth"], row["n_texts"]))
        points.append((macs / n_bytes, 1e-6 * macs / row["ms"]["median"], row["test"]))
    return points


def _xs(points: list[tuple[float, float, str]]) -> list[float]:
    return [1.0, *(intensity for intensity, _, _ in points)]


def _draw_costs(axes: Axes, document: dict[str, Any], work: Work | None) -> None:
    rows = [row for row in document["rows"] if row["ratio"] is not None]
    curves: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for row in rows:
        curves.setdefault((row["runtime"], row["depth"]), []).append((row["m"], row["ratio"]))
    for i, ((runtime, depth), curve) in enumerate(curves.items()):
        label = runtime + (f" @ d{depth}" if depth else "")
        m, ratios = zip(*sorted(curve), strict=True)
        axes.plot(m, ratios, "o-", color=COLOURS[i % len(COLOURS)], label=label)
    noisy = [row for row in rows if row["is_noisy"]]
    mark_noisy(axes, [row["m"] for row in noisy], [row["ratio"] for row in noisy])
    ms = sorted({row["m"] for row in rows})
    if work is not None and ms:
        limits = document["limits"]
        least = [bound(work, Test("verify", m), limits[READ], limits[MULTIPLY]) for m in ms]
        axes.plot(
            ms,
            [cost.seconds / least[0].seconds for cost in least],
            "--",
            color=_LIMIT_COLOUR,
            label="the machine's limit",
        )
    axes.set(
        title="Cost of checking drafts",
        xlabel="tokens in a pass",
        ylabel="time, times a pass of one token",
    )
    axes.set_ylim(bottom=0)
    if ms:
        axes.set_xticks(ms)
        axes.legend()
    axes.grid(visible=True)
