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


def test_labels_keep_clear_of_other_points() -> None:
    figure = figures.Figure(figsize=(5, 4))
    axes = figure.subplots()
    axes.plot([1.0, 9.0], [1.0, 9.0], "o")
    figure.draw_without_rendering()
    x, y = axes.transData.transform((1.0, 1.0))
    beside = axes.transData.inverted().transform((x + 20, y + 10))
    axes.plot(*beside, "o")
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    plot.label_points(axes, [(1.0, 1.0, "verify4 @ d16384")])
    (label,) = axes.texts
    assert not label.get_window_extent().contains(*axes.transData.transform(beside))


@pytest.mark.parametrize("is_noisy", [False, True])
def test_waiting_times_are_a_distribution_with_its_quantiles(
    tmp_path: Path, is_noisy: bool
) -> None:
    typing_plot = pytest.importorskip("edgedec.apps.bench.typing_plot")
    path = tmp_path / "waits.svg"
    latency = {"auto": [[(0.1 * i, float(i)) for i in range(1, 102)]], "plain": [[]]}
    document = {"model": "m", "threads": 2, "files": ["a.py"], "latency": latency}
    typing_plot.draw({**document, "noise": {"is_noisy": is_noisy}}, path)
    written = path.read_text()
    assert "auto: p50 51 ms, p95 96 ms" in written
    assert "share of keys" in written
    assert ("noisy: other programs ran" in written) is is_noisy


def row(m: int, is_noisy: bool) -> dict[str, object]:
    test = f"verify m={m}"
    facts = {
        "test": test,
        "kind": "verify",
        "n": m,
        "m": m,
        "depth": 0,
        "n_texts": 1,
        "ratio": 1.0 + m / 8,
    }
    return {**facts, "runtime": "edgedec", "is_noisy": is_noisy, "ms": {"median": 8.0 + m}}


@pytest.mark.parametrize("is_noisy", [False, True])
def test_noisy_results_are_marked(tmp_path: Path, is_noisy: bool) -> None:
    limits = {plot.READ: 20.0, plot.MULTIPLY: 90.0, "isa": "avx2"}
    rows = [row(1, False), row(4, is_noisy)]
    document = {"model": "m", "device": {"model": "cpu"}, "threads": 2, "limits": limits}
    plot.draw({**document, "rows": rows}, tmp_path / "passes.svg", None)
    written = (tmp_path / "passes.svg").read_text()
    assert ("noisy: other programs ran" in written) is is_noisy
    assert "tokens in a pass" in written


@pytest.mark.parametrize("is_noisy", [False, True])
def test_noisy_prompts_are_marked(tmp_path: Path, is_noisy: bool) -> None:
    prompts_plot = pytest.importorskip("edgedec.apps.bench.prompts_plot")
    shared = {"name": "auto", "category": "code", "is_noisy": is_noisy}
    rows = [
        {**shared, "level": "all", "speedup": 1.5},
        {**shared, "level": "category", "speedup": 1.5},
        {**shared, "level": "prompt", "speedup": 1.4},
        {**shared, "level": "prompt", "speedup": None},
    ]
    document = {
        "model": "m",
        "device": {"model": "cpu"},
        "threads": 2,
        "settings": {"max_new_tokens": 8},
        "contestants": [{"name": "plain"}, {"name": "auto"}],
        "rows": rows,
    }
    prompts_plot.draw(document, tmp_path / "methods.svg")
    written = (tmp_path / "methods.svg").read_text()
    assert ("noisy: other programs ran" in written) is is_noisy
    assert "all prompts" in written


def test_long_titles_are_broken_into_lines() -> None:
    pictures = pytest.importorskip("edgedec.apps.measuring.pictures")
    title = "a model with a very long name on a processor with a longer one, 16 threads"
    lines = pictures.title_lines(title, 5.0).splitlines()
    assert " ".join(lines) == title
    assert len(lines) > 1
    assert max(map(len, lines)) <= 72 * 5.0 / (0.56 * 12)


def test_logarithmic_axes_have_plain_numbers() -> None:
    pictures = pytest.importorskip("edgedec.apps.measuring.pictures")
    axes = figures.Figure().subplots()
    axes.loglog([0.7, 150], [2, 60])
    pictures.plain_ticks(axes)
    axes.figure.draw_without_rendering()
    assert {"1", "2", "5", "10", "100"} <= {text.get_text() for text in axes.get_xticklabels()}
