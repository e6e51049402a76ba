"""A comparison as one HTML page that needs no network: sortable tables, and plots by Plotly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from edgedec.apps.compare.charts import bars, frontier, noisy_bars, roofs, turned
from edgedec.apps.compare.tables import facts, is_wide, ratio_text, shown_row, value_text

Document = dict[str, Any]

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .8rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
th { cursor: pointer; user-select: none; vertical-align: bottom; }
th[aria-sort=ascending]::after { content: " ▲"; } th[aria-sort=descending]::after { content: " ▼"; }
tbody tr:hover { background: var(--soft); }
td small { display: block; opacity: .7; }
.plot { background: #fff; border-radius: 6px; margin: 1rem 0; }
"""

_SORT = """
for (const head of document.querySelectorAll("th")) {
  head.tabIndex = 0;
  const sort = () => {
    const table = head.closest("table"), body = table.tBodies[0], at = head.cellIndex;
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = row => row.cells[at].dataset.value ?? row.cells[at].textContent;
    const order = (a, b) => {
      const x = key(a), y = key(b), n = Number(x) - Number(y);
      return x === "" ? 1 : y === "" ? -1 : Number.isNaN(n) ? x.localeCompare(y) : n;
    };
    body.append(...[...body.rows].sort((a, b) => up ? order(a, b) : order(b, a)));
  };
  head.addEventListener("click", sort);
  head.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
}
"""


def write_page(document: Document) -> str:
    """Returns the page."""
    title = f"edgedec: {document['kind']} of {len(document['columns'])} columns"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>Ratios are against <b>{escape(document['base'])}</b>; above 1 is better.</p>",
        _table(document),
        *_plots(document),
        "<h2>What the numbers rest on</h2><ul>",
        *(f"<li>{escape(fact)}</li>" for fact in facts(document)),
        "</ul>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + f"\n<script>{_SORT}</script></body></html>\n"
    )


def _table(document: Document) -> str:
    columns = [column["name"] for column in document["columns"]]
    rows = [shown_row(row) for row in document["rows"]]
    if is_wide(document):
        heads = ["column", *(f"{row['name']}, {row['unit']}" for row in rows)]
        cells = [row["cells"] for row in rows]
        lines = [
            _line([name], values)
            for name, values in zip(columns, zip(*cells, strict=True), strict=True)
        ]
    else:
        heads = ["test", "unit", *columns]
        lines = [_line([row["name"], row["unit"]], row["cells"]) for row in rows]
    return (
        '<div class="wide"><table><thead><tr>'
        + "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
        + f"</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _line(names: Sequence[str], cells: Iterable[Document | None]) -> str:
    texts = "".join(f"<td>{escape(name)}</td>" for name in names)
    return f"<tr>{texts}{''.join(map(_cell, cells))}</tr>"


def _cell(cell: Document | None) -> str:
    if cell is None:
        return '<td data-value=""></td>'
    ratio = ratio_text(cell)
    small = f"<small>{escape(ratio)}</small>" if ratio else ""
    return f'<td data-value="{cell["value"]!r}">{escape(value_text(cell))}{small}</td>'


def _plots(document: Document) -> list[str]:
    figures = [
        ("How many times as good as the base", _bar_figure(document)),
        ("Roofline", _roof_figure(document)),
        ("Quality against time", _frontier_figure(document)),
    ]
    shown, library = [], True  # which travels with the first figure
    for title, figure in figures:
        if figure is not None:
            if any(column["is_noisy"] for column in document["columns"]):
                title += " (hollow or hatched: other programs ran)"
            html = figure.to_html(
                full_html=False, include_plotlyjs=library, config={"displayModeBar": False}
            )
            shown.append(f'<h2>{escape(title)}</h2><div class="plot">{html}</div>')
            library = False
    return shown


def _figure(x: str, y: str, **more: Any) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        template="plotly_white",
        xaxis_title=x,
        yaxis_title=y,
        margin={"t": 20},
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"},
        **more,
    )
    return figure


def _bar_figure(document: Document) -> go.Figure | None:
    figure_bars = bars(document)
    if len(figure_bars) < 2:
        return None
    noisy = noisy_bars(document)
    is_long = is_wide(document)
    title = "times as good as the base"
    if is_long:  # names beside bars that lie
        figure = _figure(title, "", barmode="group", height=150 + 36 * len(document["columns"]))
        figure.update_yaxes(autorange="reversed", automargin=True)
    else:
        figure = _figure("", title, barmode="group")
    figure_bars = (
        turned(figure_bars)
        if is_long
        else [bar for bar in figure_bars if bar[0] != document["base"]]
    )
    for name, values in figure_bars:
        are_noisy = [((at, name) if is_long else (name, at)) in noisy for at, _ in values]
        names, ratios = [escape(other) for other, _ in values], [ratio for _, ratio in values]
        figure.add_bar(
            name=escape(name),
            x=ratios if is_long else names,
            y=names if is_long else ratios,
            orientation="h" if is_long else "v",
            marker_pattern_shape=["/" if is_noisy else "" for is_noisy in are_noisy],
            hovertext=["noisy" if is_noisy else "" for is_noisy in are_noisy],
            showlegend=True,
        )
    (figure.add_vline if is_long else figure.add_hline)(1, line_width=1, line_dash="dot")
    return figure


def _roof_figure(document: Document) -> go.Figure | None:
    figure_roofs = roofs(document)
    if not figure_roofs:
        return None
    height = 450 + 24 * len(figure_roofs)  # the plot, and a name for each line
    figure = _figure("multiply-accumulates per byte of weights read", "GMAC/s", height=height)
    figure.update_xaxes(type="log", dtick=1, tickformat="~g")
    figure.update_yaxes(type="log", dtick=1, tickformat="~g")
    for i, roof in enumerate(figure_roofs):
        colour = {"color": f"hsl({int(360 * i / len(figure_roofs)) + 210}, 65%, 45%)"}
        xs = [x for x, _, _ in roof.points]
        line = np.geomspace(min(xs) / 2, 2 * max(*xs, roof.int8_gmac_s / roof.read_gb_s), 60)
        figure.add_scatter(
            x=line.tolist(),
            y=np.minimum(line * roof.read_gb_s, roof.int8_gmac_s).tolist(),
            mode="lines",
            line=colour,
            name=escape(f"{roof.name}: limit"),
            showlegend=False,
        )
        figure.add_scatter(
            x=xs,
            y=[y for _, y, _ in roof.points],
            text=[escape(name) for _, _, name in roof.points],
            mode="markers+text" if i == 0 else "markers",
            textposition="top center",
            marker={**colour, "symbol": [_symbol(n in roof.noisy) for _, _, n in roof.points]},
            name=escape(roof.name),
        )
    return figure


def _frontier_figure(document: Document) -> go.Figure | None:
    points = frontier(document)
    if not points:
        return None
    figure = _figure("seconds per answer", points[0].score_name)
    for point in points:
        figure.add_scatter(
            x=[point.seconds],
            y=[point.score],
            mode="markers",
            marker={"symbol": _symbol(point.is_noisy), "size": 10},
            name=escape(point.name),
        )
    return figure


def _symbol(is_noisy: bool) -> str:
    return "circle-open" if is_noisy else "circle"
