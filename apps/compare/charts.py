"""What is drawn of a comparison, free of any library that draws: series of points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]


@dataclass(frozen=True)
class Roof:
    """Limits of one device and what ran below them.

    points: MACs per byte, GMAC/s, name. noisy: names of points that other programs disturbed.
    """

    name: str
    read_gb_s: float
    int8_gmac_s: float
    points: tuple[tuple[float, float, str], ...]
    noisy: frozenset[str]


@dataclass(frozen=True)
class FrontierPoint:
    """One setting: seconds per answer and score. is_noisy: other programs disturbed the run."""

    name: str
    seconds: float
    score: float
    score_name: str
    is_noisy: bool


def roofs(document: Document) -> list[Roof]:
    """Returns the roofline of every column whose limits and work are known."""
    figures = []
    for i, column in enumerate(document["columns"]):
        limits = column["limits"]
        cells = [(row, row["cells"][i]) for row in document["rows"]]
        points = tuple(
            (cell["work"][1] / cell["work"][0], 1e-6 * cell["work"][1] / cell["value"], row["name"])
            for row, cell in cells
            if cell is not None and cell["work"] is not None and row["unit"] == "ms"
        )
        if limits is not None and points:
            noisy = frozenset(row["name"] for row, cell in cells if cell and cell["is_noisy"])
            roof = (column["name"], limits["read_gb_s"], limits["int8_gmac_s"])
            figures.append(Roof(*roof, points, noisy))
    return figures


def frontier(document: Document) -> list[FrontierPoint]:
    """Returns quality against speed of an evaluation's settings; nothing of other results."""
    if document["kind"] != "eval":
        return []
    times = next((row for row in document["rows"] if row["name"] == "time"), None)
    score = next((row for row in document["rows"] if row["unit"] in ("share", "bits")), None)
    if times is None or score is None:
        return []
    return [
        FrontierPoint(
            column["name"], mean_s(time), quality["value"], score["name"], column["is_noisy"]
        )
        for column, time, quality in zip(
            document["columns"], times["cells"], score["cells"], strict=True
        )
        if time is not None and quality is not None
    ]


def mean_s(cell: Document) -> float:
    """Returns the average of a cell's milliseconds. Units: seconds."""
    values: list[float] = cell["values"]
    return sum(values) / len(values) / 1000


Bars = list[tuple[str, list[tuple[str, float]]]]


def turned(figure_bars: Bars) -> Bars:
    """Returns test -> column -> ratio of column -> test -> ratio, the highest ratios first."""
    tests: dict[str, list[tuple[str, float]]] = {}
    for column, values in figure_bars:
        for test, ratio in values:
            tests.setdefault(test, []).append((column, ratio))
    return [(test, sorted(rows, key=lambda row: -row[1])) for test, rows in tests.items()]


def bars(document: Document) -> Bars:
    """Returns column -> test -> how many times as good as the base; 1 for the base itself."""
    figure_bars = []
    for i, column in enumerate(document["columns"]):
        values = []
        for row in document["rows"]:
            cell = row["cells"][i]
            if cell is None:
                continue
            if column["name"] == document["base"]:
                values.append((row["name"], 1.0))
            elif cell["ratio"] is not None and not cell["ratio"]["is_difference"]:
                values.append((row["name"], float(cell["ratio"]["value"])))
        if values:
            figure_bars.append((column["name"], values))
    return figure_bars


def noisy_bars(document: Document) -> set[tuple[str, str]]:
    """Returns column and test of all results that other programs disturbed."""
    names = [column["name"] for column in document["columns"]]
    return {
        (name, row["name"])
        for row in document["rows"]
        for name, cell in zip(names, row["cells"], strict=True)
        if cell is not None and cell["is_noisy"]
    }
