"""The pictures of `edgedec bench`."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

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


def test_waiting_times_are_a_distribution_with_its_quantiles(tmp_path: Path) -> None:
    typing_plot = pytest.importorskip("edgedec.apps.bench.typing_plot")
    path = tmp_path / "waits.svg"
    latency = {"auto": [[(0.1 * i, float(i)) for i in range(1, 102)]], "plain": [[]]}
    document = {"model": "m", "threads": 2, "files": ["a.py"], "latency": latency}
    typing_plot.draw(document, path)
    written = path.read_text()
    assert "auto: p50 51 ms, p95 96 ms" in written
    assert "share of keys" in written
