"""Draws a run of `edgedec bench --typing`: how long keys waited for a suggestion, over time."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

_COLOURS = ("#1f5fbf", "#d1495b", "#e09f3e", "#3c8d5a", "#7a5195")


def draw(document: dict[str, Any], path: Path) -> None:
    """Writes the picture: a dot for each key that a suggestion came for, a line at each median."""
    matplotlib.use("Agg")
    figure = Figure(figsize=(8.0, 4.2), layout="constrained")
    axes = figure.subplots()
    latency, colours = document["latency"], cycle(_COLOURS)
    for (method, passages), colour in zip(latency.items(), colours, strict=False):
        points = np.array([point for passage in passages for point in passage]).reshape(-1, 2)
        ends = np.cumsum([0.0] + [passage[-1][0] if passage else 0.0 for passage in passages])
        starts = np.repeat(ends[:-1], [len(passage) for passage in passages])
        axes.plot(starts + points[:, 0], points[:, 1], ".", color=colour, ms=4, label=method)
        if len(points):
            axes.axhline(float(np.median(points[:, 1])), color=colour, lw=1)
    axes.set(
        xlabel="time, s",
        ylabel="from the key to its first suggestion, ms",
        title=f"{document['model']}, {document['threads']} threads: {', '.join(document['files'])}",
    )
    axes.set_yscale("symlog", linthresh=10.0)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
