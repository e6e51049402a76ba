"""A comparison as one document, which tables, pages and pictures are made from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from edgedec.apps.compare.columns import Column, ResultFile, make_columns
from edgedec.apps.compare.ratios import Ratio, compare, value_of
from edgedec.apps.results.result import Result
from edgedec.models.errors import ConfigError

Document = dict[str, Any]


def make_comparison(
    sources: Sequence[ResultFile], base: int, allow_noise: bool, are_runs_joined: bool = True
) -> Document:
    """Returns the comparison of results with one of their columns, JSON-ready.

    base: place of the column that the others are compared with, from 0. are_runs_joined: as in
    `make_columns`.

    Raises:
        ConfigError: The results cannot be compared, or there is no such column.
    """
    columns = make_columns(sources, are_runs_joined)
    if base >= len(columns):
        raise ConfigError(f"--base is {base + 1}, expected 1 to {len(columns)}: {_names(columns)}")
    rows = list(_rows(columns, columns[base], allow_noise))
    if len(columns) > 1 and not any(len(_measured(row)) > 1 for row in rows):
        raise ConfigError(
            "the results have no test in common: measure the same -p, -n, -m and -d in all"
        )
    return {
        "kind": columns[0].result.kind,
        "workload": dict(columns[0].result.workload),
        "base": columns[base].name,
        "columns": [_column(column) for column in columns],
        "rows": rows,
    }


def _names(columns: Sequence[Column]) -> str:
    return "; ".join(f"{i + 1}: {column.name}" for i, column in enumerate(columns))


def _measured(row: Document) -> list[Document]:
    return [cell for cell in row["cells"] if cell is not None]


def _rows(columns: Sequence[Column], base: Column, allow_noise: bool) -> Iterator[Document]:
    names = dict.fromkeys(name for column in columns for run in column.runs for name in run)
    for name in names:
        quantity = next(q for column in columns for q in column.quantities(name))
        yield {
            "name": name,
            "unit": quantity.unit,
            "is_lower_better": quantity.is_lower_better,
            "cells": [_cell(column, base, name, allow_noise) for column in columns],
        }


def _cell(column: Column, base: Column, name: str, allow_noise: bool) -> Document | None:
    value = value_of(column, name)
    if value is None:
        return None
    ratio = None if column is base else compare(base, column, name, allow_noise)
    quantities = column.quantities(name)
    joules = [q.joules for q in quantities if q.joules is not None]
    return {
        "value": value,
        "values": [value for q in quantities for value in q.values],
        "n_runs": len(quantities),
        "is_noisy": any(q.is_noisy for q in quantities),
        "joules": sum(joules) / len(joules) if joules else None,
        "work": quantities[0].work,
        "ratio": dataclasses.asdict(ratio) if isinstance(ratio, Ratio) else None,
        "no_ratio_because": ratio if isinstance(ratio, str) else None,
    }


def _column(column: Column) -> Document:
    result = column.result
    return {
        "name": column.name,
        "subject": column.subject,
        "label": result.label,
        "files": [source.path.name for source in column.sources],
        "device": dataclasses.asdict(result.device),
        "build": dict(result.build),
        "bundle": dict(result.bundle),
        "threads": result.threads,
        "limits": None if result.limits is None else dict(result.limits),
        "energy_by": result.energy_by,
        "is_noisy": any(source.result.is_noisy for source in column.sources),
        "warnings": _warnings(column),
    }


def _warnings(column: Column) -> list[str]:
    """Returns what may have slowed runs of a column, in one line each."""
    warnings: dict[str, list[str]] = {}
    for source in column.sources:
        for warning in _run_warnings(source.result):
            warnings.setdefault(warning, []).append(source.path.name)
    return [f"{warning}: {', '.join(names)}" for warning, names in warnings.items()]


def _run_warnings(result: Result) -> Iterator[str]:
    before, after = result.before, result.after
    if result.is_noisy:
        yield "noisy"
    if before.n_throttled is not None and (after.n_throttled or 0) > before.n_throttled:
        yield "the processor slowed down for heat during the run"
    elif after.is_throttled:
        yield "the processor was slowed down for heat at the end"
    if after.on_battery:
        yield "on battery"
    # On x86 powersave is the usual governor, and no slower.
    if "powersave" in after.governors and result.device.architecture != "x86_64":
        yield "the governor powersave kept the processor slow"
