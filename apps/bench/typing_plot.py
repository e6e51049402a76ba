"""Draws a run of `edgedec bench --typing`: which share of keys waited how long for a suggestion."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgedec.apps.measuring.pictures import COLOURS, explain_noisy, title_lines, use_style

_SHARES = (0.5, 0.95)
_TICKS_MS = (0, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)
_WIDTH = 8.0
"""Units: inches."""


def draw(document: dict[str, Any], path: Path) -> None:
    """Writes the picture: the distribution of waiting times per method, its quantiles named."""
    use_style()
    figure = Figure(figsize=(_WIDTH, 4.6), layout="constrained")
    axes = figure.subplots()
    style = "--" if document["noise"]["is_noisy"] else "-"
    for (method, passages), colour in zip(
        document["latency"].items(), cycle(COLOURS), strict=False
    ):
        waits = np.array([wait for passage in passages for _, wait in passage])
        if len(waits):
            half, most = np.quantile(waits, _SHARES)
            label = f"{method}: p50 {half:.0f} ms, p95 {most:.0f} ms"
            axes.ecdf(waits, color=colour, label=label, ls=style)
    if document["noise"]["is_noisy"]:
        explain_noisy(axes, ls=style)
    for share in _SHARES:
        axes.axhline(share, color="#555555", lw=1, ls=":")
    title = f"{document['model']}, {document['threads']} threads: {', '.join(document['files'])}"
    axes.set(
        xlabel="time from a key to its first suggestion, ms",
        ylabel="share of keys",
        title=title_lines(title, _WIDTH - 1),
    )
    axes.set_xscale("symlog", linthresh=10.0)
    axes.set_xlim(left=0)
    axes.set_xticks([tick for tick in _TICKS_MS if tick <= axes.get_xlim()[1]])
    axes.set_ylim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid(visible=True)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="lower right")
    figure.savefig(path)
