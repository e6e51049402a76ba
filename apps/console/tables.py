"""Tables for people and for other programs."""

from __future__ import annotations

import csv
import io
from typing import Any


def table(header: list[str], rows: list[list[str]]) -> str:
    """Returns a Markdown table; nothing without rows."""
    if not rows:
        return ""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines) + "\n"


def write_csv(rows: list[dict[str, Any]]) -> str:
    """Returns rows that share their columns, with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
