"""The pictures of `edgedec bench`."""

from __future__ import annotations

from itertools import combinations

import pytest

figures = pytest.importorskip("matplotlib.figure", reason="needs the extra plots")
plot = pytest.importorskip("edgedec.apps.bench.plot")


def test_labels_keep_clear_of_each_other() -> None:
    figure = figures.Figure(figsize=(5, 4))
    axes = figure.subplots()
    points = [(1.0, 30.0 + n / 10, f"verify m={n}") for n in range(6)] + [(9.0, 90.0, "pp512")]
    for x, y, _ in points:
        axes.loglog(x, y, "o")
    axes.text(1.1, 30.5, "int8 99 GMAC/s")
    figure.draw_without_rendering()
    plot.label_points(axes, points)
    assert [text.get_text() for text in axes.texts[1:]] == [name for _, _, name in points]
    places = [text.get_window_extent() for text in axes.texts]
    assert not any(one.overlaps(other) for one, other in combinations(places, 2))
