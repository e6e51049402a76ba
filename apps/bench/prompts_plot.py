"""Draws a run of `edgedec bench --prompts`: the speed-up of each method over plain decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edgedec.apps.measuring.pictures import COLOURS, use_style

_ALL = "all prompts"
_GROUP_WIDTH = 0.8


def draw(document: dict[str, Any], path: Path) -> None:
    """Writes the picture: a bar per category and method, a dot per prompt, a line at plain."""
    use_style()
    names = [facts["name"] for facts in document["contestants"][1:]]
    groups = _groups(document)
    n_bars = max(1, len(names)) * len(groups)
    figure = Figure(figsize=(max(7.0, 3.0 + 0.28 * n_bars), 4.8), layout="constrained")
    axes = figure.subplots()
    for i, name in enumerate(names):
        _draw_contestant(axes, groups, name, i, len(names))
    axes.axhline(1.0, color="#555555", lw=1)
    axes.set_xticks(range(len(groups)), list(groups), rotation=20, ha="right")
    axes.set(
        ylabel="decoding speed, times plain",
        title=f"{document['model']} on {document['device']['model']}, {document['threads']} "
        f"threads, {document['settings']['max_new_tokens']} new tokens",
    )
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, axis="y")
    if names:
        figure.legend(loc="outside lower center", ncols=min(6, len(names)))
    figure.savefig(path)


def _groups(document: dict[str, Any]) -> dict[str, dict[str, tuple[float | None, list[float]]]]:
    """Returns category -> contestant -> the mean speed-up, and that of every prompt."""
    groups: dict[str, dict[str, tuple[float | None, list[float]]]] = {}
    for row in document["rows"]:
        if row["level"] == "prompt":
            for group in (_ALL, row["category"]):
                if row["speedup"] is not None:
                    groups[group][row["name"]][1].append(row["speedup"])
        else:
            group = _ALL if row["level"] == "all" else row["category"]
            groups.setdefault(group, {})[row["name"]] = (row["speedup"], [])
    return groups


def _draw_contestant(
    axes: Axes,
    groups: dict[str, dict[str, tuple[float | None, list[float]]]],
    name: str,
    index: int,
    n_names: int,
) -> None:
    width = _GROUP_WIDTH / n_names
    colour = COLOURS[index % len(COLOURS)]
    centres = np.arange(len(groups)) + (index - (n_names - 1) / 2) * width
    found = [group.get(name, (None, [])) for group in groups.values()]
    axes.bar(
        centres,
        [mean or 0.0 for mean, _ in found],
        0.9 * width,
        color=colour,
        alpha=0.55,
        label=name,
    )
    for centre, (_, speedups) in zip(centres, found, strict=True):
        spread = np.linspace(-0.3, 0.3, len(speedups)) if len(speedups) > 1 else np.zeros(1)
        axes.plot(centre + width * spread[: len(speedups)], speedups, ".", color=colour, ms=4)
