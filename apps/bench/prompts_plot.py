"""Draws a run of `edgedec bench --prompts`: the speed-up of each method over plain decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edgedec.apps.measuring.pictures import COLOURS, mark_noisy, title_lines, use_style

_ALL = "all prompts"
_GROUP_WIDTH = 0.8
_DOT = 4
"""Units: points."""

_Groups = dict[str, dict[str, tuple[float | None, list[tuple[float, bool]]]]]
"""By category and contestant: the mean speed-up, and each prompt's, with whether it is noisy."""


def draw(document: dict[str, Any], path: Path) -> None:
    """Writes the picture: a bar per category and method, a dot per prompt, a line at plain."""
    use_style()
    names = [facts["name"] for facts in document["contestants"][1:]]
    groups = _groups(document)
    n_bars = max(1, len(names)) * len(groups)
    width = max(7.0, 3.0 + 0.28 * n_bars)
    figure = Figure(figsize=(width, 4.8), layout="constrained")
    axes = figure.subplots()
    noisy: list[tuple[float, float]] = []
    for i, name in enumerate(names):
        noisy += _draw_contestant(axes, groups, name, i, len(names))
    mark_noisy(axes, [x for x, _ in noisy], [y for _, y in noisy], _DOT)
    axes.axhline(1.0, color="#555555", lw=1)
    axes.set_xticks(range(len(groups)), list(groups), rotation=20, ha="right")
    title = (
        f"{document['model']} on {document['device']['model']}, {document['threads']} "
        f"threads, {document['settings']['max_new_tokens']} new tokens"
    )
    axes.set(ylabel="decoding speed, times plain", title=title_lines(title, width - 1))
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, axis="y")
    if names:
        figure.legend(loc="outside lower center", ncols=min(6, len(names) + bool(noisy)))
    figure.savefig(path)


def _groups(document: dict[str, Any]) -> _Groups:
    """Returns what is drawn; all prompts are a category, the first. A single one is all prompts."""
    groups: _Groups = {}
    for row in document["rows"]:
        if row["level"] == "prompt":
            for group in (_ALL, row["category"]):
                if row["speedup"] is not None:
                    groups[group][row["name"]][1].append((row["speedup"], row["is_noisy"]))
        else:
            group = _ALL if row["level"] == "all" else row["category"]
            groups.setdefault(group, {})[row["name"]] = (row["speedup"], [])
    return groups if len(groups) > 2 else {_ALL: groups[_ALL]}


def _draw_contestant(
    axes: Axes, groups: _Groups, name: str, index: int, n_names: int
) -> list[tuple[float, float]]:
    """Draws the bars and dots of a contestant; returns where its noisy dots are."""
    width = _GROUP_WIDTH / n_names
    colour = COLOURS[index % len(COLOURS)]
    centres = np.arange(len(groups)) + (index - (n_names - 1) / 2) * width
    bars = [group.get(name, (None, [])) for group in groups.values()]
    axes.bar(
        centres,
        [mean or 0.0 for mean, _ in bars],
        0.9 * width,
        color=colour,
        alpha=0.55,
        label=name,
    )
    noisy: list[tuple[float, float]] = []
    for centre, (_, dots) in zip(centres, bars, strict=True):
        spread = np.linspace(-0.3, 0.3, len(dots)) if len(dots) > 1 else np.zeros(len(dots))
        xs = centre + width * spread
        axes.plot(xs, [speedup for speedup, _ in dots], "o", color=colour, ms=_DOT)
        noisy += [(float(x), dot[0]) for x, dot in zip(xs, dots, strict=True) if dot[1]]
    return noisy
