"""Comparisons as Markdown and CSV."""

from __future__ import annotations

import re
from typing import Any

from edgedec.apps.compare.ratios import DEVICES, RUNS, SAME_PROBLEMS, SAME_RUN, SEPARATE
from edgedec.apps.console.tables import table, write_csv

Document = dict[str, Any]

_BASES = {
    SAME_RUN: "measured side by side in one run; values are medians; ratios are geometric means "
    "of the ratios of single repetitions, so they can differ from those of the medians; 95 % "
    "interval over the repetitions",
    RUNS: "each side has three runs or more; 95 % interval over the runs",
    SEPARATE: "separate runs of one device: speeds drift from run to run, so there is no interval",
    DEVICES: "runs on different devices: there is no interval",
    SAME_PROBLEMS: "difference over the same problems; 95 % bootstrap interval",
}

_WIDE = 6
"""Columns from which on a table has a line per column of the comparison, not per test."""


def is_wide(document: Document) -> bool:
    """Whether there are so many columns that tables and plots list them downwards."""
    return len(document["columns"]) > _WIDE


def write_markdown(document: Document) -> str:
    """Returns a table of values, one of ratios, and what they rest on."""
    columns = [column["name"] for column in document["columns"]]
    rows = [shown_row(row) for row in document["rows"]]
    values = [["", "unit", *columns]] + [
        [row["name"], row["unit"], *map(value_text, row["cells"])] for row in rows
    ]
    ratios = [[f"against {document['base']}", *columns]] + [
        [row["name"], *map(ratio_text, row["cells"])] for row in rows
    ]
    at = columns.index(document["base"]) + 1
    ratios = [line[:at] + line[at + 1 :] for line in ratios]
    if is_wide(document):
        values, ratios = (list(map(list, zip(*lines, strict=True))) for lines in (values, ratios))
    values[0][0] = document["kind"]
    parts = [table(values[0], values[1:])]
    if len(columns) > 1:
        parts.append(table(ratios[0], ratios[1:]))
    return "\n".join([*parts, _facts(document)])


def shown_row(row: Document) -> Document:
    """Returns a row as people read it: prefill and decoding in tokens per second, as in `bench`."""
    named = re.match(r"(pp|tg)(\d+)", row["name"])
    if row["unit"] != "ms" or named is None:
        return row
    n_tokens = int(named[2]) if named[1] == "pp" else 1  # decoding is measured per token
    cells = [
        cell if cell is None else {**cell, "value": 1000 * n_tokens / cell["value"]}
        for cell in row["cells"]
    ]
    return {**row, "unit": "tokens/s", "is_lower_better": False, "cells": cells}


def value_text(cell: Document | None) -> str:
    """Returns a value as people read it."""
    if cell is None:
        return ""
    mark = " (noisy)" if cell["is_noisy"] else ""
    return f"{cell['value']:.4g}{mark}"


def ratio_text(cell: Document | None) -> str:
    """Returns a ratio with its interval, or why there is none."""
    if cell is None:
        return ""
    ratio = cell["ratio"]
    if ratio is None:
        return cell["no_ratio_because"] or ""
    sign = "+" if ratio["is_difference"] else ""
    text = format(ratio["value"], f"{sign}.3f")
    if ratio["low"] is None:
        return text
    low, high = (format(ratio[side], f"{sign}.3f") for side in ("low", "high"))
    return f"{text} ({low} to {high})"


def facts(document: Document) -> list[str]:
    """Returns what the numbers rest on, one fact each."""
    cells = [cell for row in document["rows"] for cell in row["cells"] if cell is not None]
    bases = {cell["ratio"]["basis"] for cell in cells if cell["ratio"] is not None}
    lines = ["ratios: above 1 is better"] if bases - {SAME_PROBLEMS} else []
    lines += [text for basis, text in _BASES.items() if basis in bases]
    if any(cell["no_ratio_because"] == "noisy" for cell in cells):
        lines.append("noisy: no ratio; measure again, or pass --allow-noise")
    for column in document["columns"]:
        device, build = column["device"], column["build"]
        cores = ", ".join(f"{n} x {kind}" for kind, n in device["cores"].items())
        threads = f"{column['threads']} thread{'s' * (column['threads'] != 1)}"
        lines.append(
            f"{column['name']}: {column['subject']}, {column['bundle']['name']} "
            f"{column['bundle']['quantization']}, {threads}; {cores}, "
            f"{device['memory_bytes'] / 1e9:.0f} GB, {device['system']} {device['kernel']}; "
            f"edgedec {build['edgedec']}, kernels {build['kernels_sha256']}"
        )
        lines += column["warnings"]
    return lines


def _facts(document: Document) -> str:
    return "".join(f"- {line}\n" for line in facts(document))


def write_table(document: Document) -> str:
    """Returns CSV with one line for each cell."""
    rows = []
    for row in document["rows"]:
        for column, cell in zip(document["columns"], row["cells"], strict=True):
            if cell is None:
                continue
            ratio = cell["ratio"] or dict.fromkeys(("value", "low", "high", "basis"))
            rows.append(
                {
                    "test": row["name"],
                    "unit": row["unit"],
                    "column": column["name"],
                    "subject": column["subject"],
                    "label": column["label"],
                    "cpu": column["device"]["cpu"],
                    "threads": column["threads"],
                    "bundle": column["bundle"]["name"],
                    "quantization": column["bundle"]["quantization"],
                    "value": cell["value"],
                    "n_runs": cell["n_runs"],
                    "is_noisy": cell["is_noisy"],
                    "joules": cell["joules"],
                    "ratio": ratio["value"],
                    "low": ratio["low"],
                    "high": ratio["high"],
                    "basis": ratio["basis"] or cell["no_ratio_because"],
                }
            )
    return write_csv(rows)
