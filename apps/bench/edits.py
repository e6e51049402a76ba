"""`edgedec bench --edits`: the edits of a history, each predicted from those before it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from edgedec.apps.bench.edit_bounds import (
    MIN_GOOD,
    MIN_SILENT,
    choose_bound,
    halves,
    quality,
    with_bound,
)
from edgedec.apps.bench.edit_sources import EditCase, read_cases
from edgedec.apps.bench.edits_job import EditRow, replay
from edgedec.apps.bench.edits_rows import RowFile
from edgedec.apps.bench.output import Printing
from edgedec.apps.bench.report import written
from edgedec.apps.console.option import option
from edgedec.apps.console.progress import ProgressBars, count_amount
from edgedec.apps.console.tables import table
from edgedec.apps.console.terminal import note, write_out
from edgedec.apps.measuring.disturbance import RunWatch, noise_text
from edgedec.apps.measuring.facts import build_facts, device_facts
from edgedec.apps.measuring.loop import Plan
from edgedec.autocomplete.edits import EditConfig
from edgedec.export.manifest_change import change_manifest, check_writable
from edgedec.models.errors import EdgedecError
from edgedec.models.manifest import BundleManifest, fingerprint_of, read_manifest
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.runtime.sequences.session_memory import TARGET

Row = dict[str, Any]
_N_CASES = 50
_CONTEXT = 4096


@dataclass(frozen=True, kw_only=True)
class EditsOptions:
    """Options for replaying edits."""

    edits: Annotated[
        list[Path] | None,
        option(
            "PATH",
            "Predict the edits in the history of this git repository, or of a JSONL file. "
            "Repeatable.",
        ),
    ] = None
    edit_cases: Annotated[
        int | None, option("N", "Edits per history, the newest (default 50).", min=1)
    ] = None
    edit_methods: Annotated[
        str | None, option("M,..", "Decoding methods to compare (default auto).")
    ] = None
    edit_format: Annotated[
        str | None, typer.Option(help="How the model is asked (default instruction).")
    ] = None
    min_edit_probability: Annotated[
        float | None,
        option(
            "P",
            "Show no edit that is less likely (default: what the bundle was calibrated to).",
            min=0,
            max=1,
        ),
    ] = None
    edit_rows: Annotated[
        Path | None, option("FILE.jsonl", "Keep each result here; the same command resumes.")
    ] = None
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Choose the probability on half of the commits, report it on the others, and "
            "write it into the bundle.",
        ),
    ] = False


@dataclass(frozen=True)
class _Setting:
    """One method, and what identifies it with the model."""

    config: EditConfig
    fingerprint: str


def bench_edits(bundle: Path, chosen: EditsOptions, plan: Plan, printing: Printing) -> None:
    """Replays edits, in turn under each method, and prints what that came to."""
    manifest = read_manifest(bundle)
    manifest.check_writes()
    if chosen.calibrate:
        check_writable(bundle)
    settings = _settings(manifest, chosen)
    rows = RowFile(chosen.edit_rows)
    cases = [
        case
        for path in chosen.edits or []
        for case in read_cases(path, chosen.edit_cases or _N_CASES)
    ]
    loading = EngineOptions(
        threads=plan.n_threads,
        context=min(manifest.target.context, _CONTEXT),
        provider=plan.provider,
        device=plan.device,
    )
    with load(bundle, loading) as engine:
        bound = settings[0].config.bound(engine)
        watch = RunWatch(plan.n_threads)
        by_method = _replay_all(engine, settings, cases, rows)
        noise = watch.noise()
    document = {
        "bundle": str(bundle),
        "model": manifest.name,
        "threads": plan.n_threads,
        "histories": [str(path) for path in chosen.edits or []],
        "format": settings[0].config.format,
        "device": device_facts(),
        "build": build_facts(),
        "noise": noise,
        "n_cases": len(cases),
        "n_replayed": len(by_method[settings[0].config.method]),
        "n_identical": _n_identical(list(by_method.values())),
        "rows": [_row(method, rows, bound) for method, rows in by_method.items()],
        "calibration": None,
    }
    if chosen.calibrate:
        document["calibration"] = _calibrate(bundle, manifest, by_method, settings[0])
    write_out(written(document, printing.output.value, lambda d: d["rows"], _markdown))


def _settings(manifest: BundleManifest, chosen: EditsOptions) -> list[_Setting]:
    """Returns what is compared, one for each method."""
    default = EditConfig()
    settings = []
    for method in dict.fromkeys((chosen.edit_methods or default.method).split(",")):
        config = EditConfig(
            method=method,
            format=chosen.edit_format or default.format,
            min_probability=chosen.min_edit_probability,
        )
        facts = [fingerprint_of(manifest, TARGET), config.format, config.n_lines, method]
        fingerprint = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
        settings.append(_Setting(config, fingerprint))
    return settings


def _replay_all(
    engine: Engine, settings: Sequence[_Setting], cases: Sequence[EditCase], rows: RowFile
) -> dict[str, list[EditRow]]:
    """Returns the rows of each method. Methods take turns at each case, in turning order.

    Ctrl-C ends it; what is whole counts.
    """
    by_method: dict[str, list[EditRow]] = {setting.config.method: [] for setting in settings}
    with ProgressBars(count_amount) as bars:
        try:
            for i, case in enumerate(cases):
                done = {}
                for setting in [*settings[i % len(settings) :], *settings[: i % len(settings)]]:
                    row = rows.get(setting.fingerprint, case.key)
                    if row is None:
                        row = replay(engine, setting.config, case, setting.fingerprint)
                        rows.add(row)
                    done[setting.config.method] = row
                for method, row in done.items():
                    by_method[method].append(row)
                bars.report("edits", i + 1, len(cases))
        except KeyboardInterrupt:
            note("interrupted: what was done counts")
    if not next(iter(by_method.values())):
        raise EdgedecError("no case was replayed to its end: run it again")
    return by_method


def _n_identical(rows_by: Sequence[Sequence[EditRow]]) -> int | None:
    """Returns the cases whose answers are the same under all methods; None for one method."""
    if len(rows_by) < 2:
        return None
    return sum(
        len({tuple(window.text_sha256 for window in row.windows) for row in rows}) == 1
        for rows in zip(*rows_by, strict=True)
    )


def _row(method: str, rows: Sequence[EditRow], bound: float) -> Row:
    """Returns the figures of one method."""
    windows = [window for row in rows for window in row.windows]
    shown_ms = [window.ms for row in rows if (window := row.shown(bound)) is not None]
    made_ms = [row.windows[0].ms for row in rows if row.windows]
    read_shares = [window.n_read_tokens / window.n_prompt_tokens for window in windows]
    n_passes = sum(window.n_passes for window in windows)
    n_new = sum(window.n_new_tokens for window in windows)
    return {
        "method": method,
        **quality(rows, bound).to_dict(),
        "shown_ms_p50": _percentile(shown_ms, 50),
        "shown_ms_p95": _percentile(shown_ms, 95),
        "first_window_ms_p50": _percentile(made_ms, 50),
        "first_window_ms_p95": _percentile(made_ms, 95),
        "tokens_per_pass": n_new / n_passes if n_passes else None,
        "read_share_p50": _percentile(read_shares, 50),
        "read_share_p95": _percentile(read_shares, 95),
        "n_new_tokens": n_new,
        "n_passes": n_passes,
    }


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None


def _calibrate(
    bundle: Path,
    manifest: BundleManifest,
    by_method: Mapping[str, Sequence[EditRow]],
    setting: _Setting,
) -> Row:
    """Writes the bound into the bundle, if there is one; returns what it rests on."""
    choosing, reporting = halves(by_method[setting.config.method])
    best = choose_bound(choosing)
    if best is None:
        raise EdgedecError(
            f"no probability reaches {MIN_GOOD:.0%} right or near edits and {MIN_SILENT:.0%} right "
            "silence on the half that chooses: replay more edits, or use a larger model"
        )
    reported = quality(reporting, best.bound)
    edit_format = setting.config.format
    change_manifest(bundle, manifest, lambda now: with_bound(now, edit_format, best, reported))
    return {"chosen": best.to_dict(), "reported": reported.to_dict()}


def _markdown(document: Row) -> str:
    header = ["method", "cases", "shown", "right", "near", "wrong", "right or near",
              "right silence", "key to edit p50 ms", "p95", "tokens per pass",
              "prompt read p50", "p95"]  # fmt: skip
    facts = (
        f"- {', '.join(document['histories'])}: after each edit of a commit, the next one is "
        "predicted; the last character of the edit is the key\n"
        "- right: all its lines lead to what the commit made; near: three of four changed "
        "characters do; right silence: of the cases after which nothing followed in this file\n"
        f"- edits below {document['rows'][0]['bound']:.3g} are not shown\n"
        f"{_counts(document)}"
        f"- {noise_text(document['noise'])}\n"
    )
    text = table(header, [_cells(row) for row in document["rows"]]) + "\n" + facts
    if (calibration := document["calibration"]) is not None:
        chosen, reported = calibration["chosen"], calibration["reported"]
        text += (
            f"- calibrated: edits from {chosen['bound']:.3g} on are shown; on the other half of "
            f"the commits, {_share(reported['good_share'])} were right or near, and "
            f"{_share(reported['silent_share'])} of the silence was right\n"
        )
    return text


def _counts(document: Row) -> str:
    """Returns how many cases were replayed if not all, and how many methods agreed on."""
    n_replayed, n_cases = document["n_replayed"], document["n_cases"]
    lines = [] if n_replayed == n_cases else [f"replayed before the end: {n_replayed} of {n_cases}"]
    if (n_identical := document["n_identical"]) is not None:
        lines.append(f"answers identical under all methods: {n_identical} of {n_replayed}")
    return "".join(f"- {line}\n" for line in lines)


def _cells(row: Row) -> list[str]:
    times = [
        "" if row[name] is None else f"{row[name]:.0f}" for name in ("shown_ms_p50", "shown_ms_p95")
    ]
    counts = [str(row[name]) for name in ("n_right", "n_near", "n_wrong")]
    return [
        row["method"],
        str(row["n_cases"]),
        str(row["n_cases"] - row["n_silent"]),
        *counts,
        _share(row["good_share"]),
        _share(row["silent_share"]),
        *times,
        "" if row["tokens_per_pass"] is None else f"{row['tokens_per_pass']:.1f}",
        _share(row["read_share_p50"]),
        _share(row["read_share_p95"]),
    ]


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
