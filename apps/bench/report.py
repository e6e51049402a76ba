"""How results of `edgedec bench` are written: one JSON document, and tables made from it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgedec.apps.bench.jobs import (
    MULTIPLY,
    READ,
    READ_ALONE,
    Test,
    job_name,
    read_buffer_bytes,
)
from edgedec.apps.bench.work import Work, bound, read_work
from edgedec.apps.console.tables import table, write_csv
from edgedec.apps.measuring.facts import build_facts, device_facts
from edgedec.apps.measuring.loop import Measurement, Plan, Series
from edgedec.apps.measuring.summary import summarize
from edgedec.apps.peers.instruction_sets import instruction_set, is_lesser
from edgedec.kernels import cpu
from edgedec.models.manifest import BundleManifest

Row = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """Everything a run found out.

    loaded: what each runtime loaded and what that took, edgedec first. missing: peers that could
    not be measured, with the reason. energy_by: the energy meter's name.
    """

    bundle: Path
    manifest: BundleManifest
    tests: list[Test]
    plan: Plan
    measurement: Measurement
    loaded: dict[str, dict[str, Any]]
    missing: dict[str, str]
    energy_by: str | None


def make_document(outcome: Outcome) -> dict[str, Any]:
    """Returns the JSON document of a run."""
    measurement, entry = outcome.measurement, outcome.manifest.target
    read_gb_s = measurement.series[READ].summary
    int8_gmac_s = measurement.series[MULTIPLY].summary
    work = read_work(entry)
    return {
        "bundle": str(outcome.bundle),
        "model": outcome.manifest.name,
        "quantization": outcome.manifest.quantization,
        "weight_bytes": work.weight_bytes if work is not None else None,
        "threads": outcome.plan.n_threads,
        "repetitions": outcome.plan.repetitions,
        "device": device_facts(),
        "build": build_facts(),
        "limits": {
            READ: read_gb_s.maximum,
            READ_ALONE: measurement.series[READ_ALONE].summary.maximum,
            MULTIPLY: int8_gmac_s.maximum,
            "isa": cpu.active_isa(),
            "read_buffer_bytes": read_buffer_bytes(),
        },
        "runtimes": [
            {"runtime": name, "isa": instruction_set(facts.get("system", "")), **facts}
            for name, facts in outcome.loaded.items()
        ],
        "missing": [{"runtime": name, "reason": why} for name, why in outcome.missing.items()],
        "rows": _rows(outcome, work, read_gb_s.maximum, int8_gmac_s.maximum),
        "noise": {
            "bounds": dataclasses.asdict(measurement.bounds),
            "lost_share": measurement.lost_share,
            "n_discarded_repetitions": measurement.n_discarded,
            "noisy": measurement.noisy(),
        },
        "energy_by": outcome.energy_by,
    }


def _rows(outcome: Outcome, work: Work | None, read_gb_s: float, int8_gmac_s: float) -> list[Row]:
    all_series = outcome.measurement.series
    noisy = outcome.measurement.noisy()
    rows: list[Row] = []
    for test in outcome.tests:
        for runtime in outcome.loaded:
            series = all_series.get(job_name(runtime, test))
            if series is None:
                continue
            row = _row(runtime, test, series)
            first = all_series.get(job_name(runtime, Test("verify", 1, test.depth)))
            if test.kind == "verify" and first is not None:
                row["ratio"] = series.summary.median / first.summary.median
            if work is not None and runtime == "edgedec":
                least = bound(work, test, read_gb_s, int8_gmac_s)
                row["fraction_of_limit"] = least.seconds / series.summary.median
                row["bound_by"] = least.limit
            row["is_noisy"] = series.name in noisy
            rows.append(row)
    return rows


def _row(runtime: str, test: Test, series: Series) -> Row:
    """Returns a row with everything but comparisons."""
    n_tokens = 1 if test.kind == "tg" else test.n  # that the seconds of a sample are for
    rates = summarize([n_tokens / sample.value for sample in series.samples])
    return {
        "runtime": runtime,
        "test": test.name,
        "kind": test.kind,
        "n": test.n,
        "m": test.n if test.kind == "verify" else None,
        "depth": test.depth,
        "n_texts": test.n_texts,
        "tokens_per_s": rates.to_dict(),
        "ms": summarize([1000 * sample.value for sample in series.samples]).to_dict(),
        "ratio": None,
        "fraction_of_limit": None,
        "bound_by": None,
        "joules_per_token": series.joules,
        "n_involuntary_switches": series.n_involuntary,
    }


def render(document: dict[str, Any], output: str) -> str:
    """Returns the document as ``md``, ``json``, ``csv`` or ``jsonl``."""
    return written(document, output, _flat_rows, _markdown)


def written(
    document: dict[str, Any],
    output: str,
    flat_rows: Callable[[dict[str, Any]], list[Row]],
    markdown: Callable[[dict[str, Any]], str],
) -> str:
    """Returns a document in the format ``output``: ``json``, ``jsonl``, ``csv`` or Markdown."""
    match output:
        case "json":
            return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        case "jsonl":
            return "".join(json.dumps(row) + "\n" for row in flat_rows(document))
        case "csv":
            return write_csv(flat_rows(document))
        case _:
            return markdown(document)


def _flat_rows(document: dict[str, Any]) -> list[Row]:
    """Returns one record per row, free of nested values, with its model and machine."""
    common = {
        "build": f"edgedec {document['build']['edgedec']} {document['build']['kernels_sha256']}",
        "cpu": document["device"]["model"],
        "isa": document["limits"]["isa"],
        "model": document["model"],
        "threads": document["threads"],
        READ: document["limits"][READ],
        MULTIPLY: document["limits"][MULTIPLY],
    }
    rows: list[Row] = []
    for row in document["rows"]:
        flat: Row = dict(common)
        for key, value in row.items():
            if isinstance(value, dict):
                flat |= {f"{key}_{name}": number for name, number in value.items()}
            else:
                flat[key] = value
        rows.append(flat)
    return rows


def _markdown(document: dict[str, Any]) -> str:
    rows = document["rows"]
    parts = [
        table(
            ["model", "runtime", "threads", "test", "tokens/s", "of the limit", "J/token"],
            [_speed_cells(document, row) for row in rows if row["kind"] != "verify"],
        ),
        table(
            ["runtime", "test", "m", "ms", "ratio to m = 1", "of the limit"],
            [_verify_cells(row) for row in rows if row["kind"] == "verify"],
        ),
        table(
            ["runtime", "loaded", "format", "through", "load ms", "first token ms", "peak MB"],
            [_runtime_cells(facts, document["limits"]["isa"]) for facts in document["runtimes"]],
        ),
        "".join(f"- {m['runtime']} was not measured: {m['reason']}\n" for m in document["missing"]),
        _facts(document),
    ]
    return "\n".join(part for part in parts if part)


def _speed_cells(document: dict[str, Any], row: Row) -> list[str]:
    speed, joules = row["tokens_per_s"], row["joules_per_token"]
    mark = " (noisy)" if row["is_noisy"] else ""
    return [
        document["model"],
        row["runtime"],
        str(document["threads"]),
        row["test"],
        f"{speed['median']:.2f} ± {speed['std']:.2f}{mark}",
        _share(row),
        "" if joules is None else f"{joules:.3g}",
    ]


def _verify_cells(row: Row) -> list[str]:
    mark = " (noisy)" if row["is_noisy"] else ""
    time_ms = row["ms"]
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    return [
        row["runtime"],
        row["test"],
        str(row["m"]),
        f"{time_ms['median']:.2f} ± {time_ms['std']:.2f}{mark}",
        ratio,
        _share(row),
    ]


def _share(row: Row) -> str:
    if row["fraction_of_limit"] is None:
        return ""
    return f"{row['fraction_of_limit']:.0%} {row['bound_by']}"


def _runtime_cells(facts: dict[str, Any], own_isa: str) -> list[str]:
    options = f", {facts['options']}" if facts.get("options") else ""
    if isa := facts["isa"]:
        options += f", {isa}" + (f": less than {own_isa}" if is_lesser(isa, own_isa) else "")
    peak = facts["peak_rss_mb"]
    return [
        facts["runtime"],
        Path(facts["model"]).name,
        facts.get("format", "bundle"),
        f"{facts['through']}{options}",
        f"{facts['load_ms']:.0f}",
        f"{facts['first_token_ms']:.0f}",
        "" if peak is None else f"{peak:.0f}",
    ]


def _facts(document: dict[str, Any]) -> str:
    """Returns what the numbers rest on, one fact per line."""
    limits, noise, device = document["limits"], document["noise"], document["device"]
    build = document["build"]
    lost = noise["lost_share"]
    others = "unknown" if lost is None else f"{lost:.1%}"
    bounds = noise["bounds"]
    lines = [
        f"limits measured in this run: read {limits[READ]:.1f} GB/s (one thread alone "
        f"{limits[READ_ALONE]:.1f}), int8 dot products {limits[MULTIPLY]:.0f} GMAC/s "
        f"({limits['isa']}), {document['threads']} threads",
        f"device: {device['model']}, {device['n_usable']} logical cores usable, "
        f"{device['platform']}",
        f"build: edgedec {build['edgedec']}, kernels {build['kernels_sha256']}, "
        f"onnxruntime {build['onnxruntime']}, Python {build['python']}",
        f"{document['repetitions']} repetitions, interleaved; median ± standard deviation, ratios "
        f"of medians; {noise['n_discarded_repetitions']} disturbed repetitions thrown away",
        f"CPU time taken by others: {others} (bound {bounds['lost_share']:.0%}); a row is noisy "
        f"if its repetitions spread by more than {bounds['spread']:.0%}",
    ]
    if document["energy_by"]:
        lines.append(f"energy: {document['energy_by']}")
    return "".join(f"- {line}\n" for line in lines)
