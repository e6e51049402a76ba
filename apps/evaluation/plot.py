"""Draws an evaluation: quality against time, a point per setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from edgedec.apps.evaluation.tasks import METRICS

_COLOURS = ("#1f5fbf", "#d1495b", "#e09f3e", "#3c8d5a", "#7a5195", "#2a9d8f", "#8d6346", "#777777")


def draw(document: dict[str, Any], path: Path) -> None:
    """Writes the picture: the score with its interval over the seconds per sample."""
    matplotlib.use("Agg")
    metric = METRICS[document["task"]][0]
    scale = 100.0 if metric.is_share else 1.0
    figure = Figure(figsize=(7.0, 4.8), layout="constrained")
    axes = figure.subplots()
    for i, row in enumerate(document["settings"]):
        found = row["metrics"][metric.name]
        if found is None or row["seconds_per_sample"] is None:
            continue
        value, low, high = (scale * found[key] for key in ("value", "low", "high"))
        axes.errorbar(
            row["seconds_per_sample"],
            value,
            # A percentile interval may leave its value out by a hair.
            [[max(0.0, value - low)], [max(0.0, high - value)]],
            fmt="o" if row["lossless"] else "s",
            capsize=3,
            color=_COLOURS[i % len(_COLOURS)],
            label=row["label"] + ("" if row["lossless"] else " (approximate)"),
        )
    facts = document["settings"][0]["facts"]
    axes.set(
        xlabel="seconds per sample",
        ylabel=f"{metric.name} (%)" if metric.is_share else metric.name,
        title=f"{facts['bundle']}, {document['task']}, {facts['threads']} threads",
    )
    axes.set_xlim(left=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
