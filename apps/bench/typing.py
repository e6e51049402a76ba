"""`edgedec bench --typing`: what a keystroke costs, and what suggestions save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from edgedec.apps.bench.keystrokes import DEVIATION_S, MEAN_S, Passage, read_passages
from edgedec.apps.bench.output import Printing
from edgedec.apps.bench.report import written
from edgedec.apps.bench.results import measured_typing
from edgedec.apps.bench.typing_job import Typed, type_passage
from edgedec.apps.bench.typing_rivals import N_TOKENS, compare, requests_of
from edgedec.apps.console.option import option
from edgedec.apps.console.progress import ProgressBars, count_amount
from edgedec.apps.console.tables import table
from edgedec.apps.console.terminal import note, write_out
from edgedec.apps.measuring.disturbance import RunWatch, noise_text
from edgedec.apps.measuring.facts import build_facts, device_facts
from edgedec.apps.measuring.loop import Plan
from edgedec.apps.measuring.plotters import find_plotter
from edgedec.apps.peers.rivals import Rivals
from edgedec.apps.results.recording import texts_sha256
from edgedec.apps.results.result import Scalar
from edgedec.autocomplete.config import AutocompleteConfig
from edgedec.models.manifest import read_manifest
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions

Row = dict[str, Any]
N_KEYS = 200


@dataclass(frozen=True, kw_only=True)
class TypingOptions:
    """Options for measuring suggestions while typing."""

    typing: Annotated[
        list[Path] | None,
        option("FILE", "Simulate typing part of this file with autocomplete. Repeatable."),
    ] = None
    typed_keys: Annotated[
        int | None, option("N", "Characters to type per file (default 200).", min=1)
    ] = None
    typing_methods: Annotated[
        str | None, option("M,..", "Decoding methods to compare (default auto).")
    ] = None
    min_probability: Annotated[
        float | None,
        option("P", "Suggestions stop below this probability (default 0.3).", min=0, max=1),
    ] = None


def bench_typing(
    bundle: Path, typing_options: TypingOptions, plan: Plan, rivals: Rivals, printing: Printing
) -> None:
    """Types passages of files, in turn under each method, and prints what that came to."""
    draw = find_plotter("bench.typing_plot", printing.plot)
    manifest = read_manifest(bundle)
    manifest.check_writes()
    passages = read_passages(typing_options.typing or [], typing_options.typed_keys or N_KEYS)
    configs = _configs(typing_options)
    least = configs[0].min_probability
    context = min(manifest.target.context, configs[0].n_before + configs[0].n_after + 512)
    loading = EngineOptions(
        threads=plan.n_threads, context=context, provider=plan.provider, device=plan.device
    )
    with ExitStack() as stack:
        engine = stack.enter_context(load(bundle, loading))
        others = {}
        if manifest.head is not None:
            headless = load(bundle, replace(loading, head=False))
            others["edgedec without the head"] = stack.enter_context(headless)
        watch = RunWatch(plan.n_threads)
        typed_by = _type_all(engine, configs, passages)
        noise = watch.noise()
        against, missing = _against(engine, configs[0], passages, rivals, plan.n_threads, others)
    document = {
        "bundle": str(bundle),
        "model": manifest.name,
        "threads": plan.n_threads,
        "keys": {"mean_ms": 1000 * MEAN_S, "deviation_ms": 1000 * DEVIATION_S},
        "min_probability": least,
        "files": [passage.name for passage in passages],
        "device": device_facts(),
        "build": build_facts(),
        "noise": noise,
        "against": against,
        "missing": missing,
        "latency": {
            config.method: [
                list(zip(passage.key_s, passage.first_ms, strict=True)) for passage in typed
            ]
            for config, typed in zip(configs, typed_by, strict=True)
        },
        "rows": [
            _row(config.method, typed) for config, typed in zip(configs, typed_by, strict=True)
        ],
    }
    write_out(written(document, printing.output.value, lambda d: d["rows"], _markdown))
    by_method = {config.method: typed for config, typed in zip(configs, typed_by, strict=True)}
    workload: dict[str, Scalar] = {
        "texts_sha256": texts_sha256([p.before + p.typed + p.behind for p in passages]),
        "min_probability": least,
        "mean_key_ms": 1000 * MEAN_S,
    }
    measured = measured_typing(by_method, plan.n_threads, workload, noise["lost_share"])
    printing.recorder.save(bundle, manifest, measured)
    if draw is not None and printing.plot is not None:
        draw(document, printing.plot)
        note(f"drew {printing.plot}")


def _configs(typing_options: TypingOptions) -> list[AutocompleteConfig]:
    """Returns the settings that are compared, one for each method."""
    default = AutocompleteConfig()
    chosen = typing_options.min_probability
    least = default.min_probability if chosen is None else chosen
    methods = (typing_options.typing_methods or default.method).split(",")
    return [AutocompleteConfig(method=m, min_probability=least) for m in dict.fromkeys(methods)]


def _against(
    engine: Engine,
    config: AutocompleteConfig,
    passages: Sequence[Passage],
    rivals: Rivals,
    n_threads: int,
    others: Mapping[str, Engine],
) -> tuple[list[Row], dict[str, str]]:
    """Returns what other engines and peers take for the same requests, and why some are missing."""
    if not (rivals.modes or others):
        return [], {}
    requests = requests_of(engine, config, passages)
    with ProgressBars(count_amount) as bars:
        return compare(
            engine, config, requests, rivals, n_threads, others,
            lambda n: bars.report("against", n, len(requests)),
        )  # fmt: skip


def _type_all(
    engine: Engine, configs: Sequence[AutocompleteConfig], passages: Sequence[Passage]
) -> list[list[Typed]]:
    """Returns what came of each passage, by method; passages are typed in turn under each."""
    typed_by: list[list[Typed]] = [[] for _ in configs]
    n_total = len(configs) * sum(len(passage.typed) for passage in passages)
    n_done = 0
    with ProgressBars(count_amount) as bars:
        for seed, passage in enumerate(passages):
            for config, typed in zip(configs, typed_by, strict=True):
                engine.forget_prompts()

                def report(n: int, before: int = n_done) -> None:
                    bars.report("type", before + n, n_total)

                typed.append(type_passage(engine, config, passage, seed, report=report))
                n_done += len(passage.typed)
    return typed_by


def _row(method: str, typed: Sequence[Typed]) -> Row:
    """Returns the figures of one method, over all files."""

    def total(name: str) -> float:
        return float(sum(getattr(part, name) for part in typed))

    def count(name: str) -> int:
        return sum(getattr(part.counts, name) for part in typed)

    first_ms = [ms for part in typed for ms in part.first_ms]
    wait_ms = [ms for part in typed for ms in part.counts.wait_ms]
    cancel_ms = [ms for part in typed for ms in part.counts.cancel_ms]
    similarity = [s for part in typed for s in part.similarity]
    p50, p95, p99 = np.percentile(first_ms, [50, 95, 99]) if first_ms else [None] * 3
    return {
        "method": method,
        "n_characters": int(total("n_characters")),
        "n_keys": int(total("n_keys")),
        "saved_share": 1 - total("n_keys") / total("n_characters"),
        "first_ms_p50": p50,
        "first_ms_p95": p95,
        "first_ms_p99": p99,
        "offered_share": len(first_ms) / count("n_updates"),
        "n_offers": int(total("n_offers")),
        "n_taken": int(total("n_taken")),
        "exact_share": _share(total("n_exact"), total("n_offers")),
        "similarity": float(np.mean(similarity)) if similarity else None,
        "agreeing_share": _share(count("n_agreeing"), count("n_updates")),
        "reused_share": _share(count("n_reused"), count("n_prompt")),
        "n_computed": count("n_computed"),
        "shown_share": _share(count("n_shown"), count("n_computed")),
        "wait_ms_p99": float(np.percentile(wait_ms, 99)),
        "cancel_ms_p99": float(np.percentile(cancel_ms, 99)) if cancel_ms else None,
        "cpu_s_per_1000": 1000 * total("cpu_s") / total("n_characters"),
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _markdown(document: dict[str, Any]) -> str:
    header = ["method", "keys saved", "first p50 ms", "p95", "p99", "keys with an offer",
              "offers exact", "similar", "taken", "prompt reused", "tokens shown", "wait p99 ms",
              "cancel p99 ms", "CPU s per 1,000 characters"]  # fmt: skip
    keys = document["keys"]
    facts = (
        f"- {', '.join(document['files'])}: typed in real time, {keys['mean_ms']:.0f} ms between "
        f"keys, deviation {keys['deviation_ms']:.0f} (Dhakal et al., 2018), seeded\n"
        "- a right offer is taken with one key, at the time of the next key; exact: the offer is "
        "the rest of the line; similar: how similar it is to that, 0 to 1\n"
        "- tokens shown: share of the computed ones; wait: until the old computation had stopped; "
        "cancel: for passes that were ended early\n"
        f"- {noise_text(document['noise'])}\n"
    )
    typed = table(header, [_cells(row) for row in document["rows"]]) + "\n" + facts
    return typed + _against_markdown(document)


def _against_markdown(document: dict[str, Any]) -> str:
    rows = document["against"]
    missing = "".join(f"- {name}: {why}\n" for name, why in document["missing"].items())
    if not rows:
        return missing
    header = ["runtime", "first token p50 ms", "p95", "x ours", f"{N_TOKENS} tokens p50 ms", "p95",
              "x ours", "same tokens"]  # fmt: skip
    cells = [
        [
            row["name"],
            f"{row['first_ms_p50']:.1f}",
            f"{row['first_ms_p95']:.1f}",
            f"{row['first_times_ours']:.2f}",
            f"{row['line_ms_p50']:.1f}",
            f"{row['line_ms_p95']:.1f}",
            f"{row['line_times_ours']:.2f}",
            "" if row["same_share"] is None else f"{row['same_share']:.0%}",
        ]
        for row in rows
    ]
    facts = (
        f"- {rows[0]['n_requests']} requests, one for each key that changes the prompt, answered "
        "in turn; each runtime computes only what its KV cache does not hold\n"
    )
    return "\n" + table(header, cells) + "\n" + facts + missing


def _cells(row: Row) -> list[str]:
    times = [
        "" if (ms := row[f"first_ms_{p}"]) is None else f"{ms:.0f}" for p in ("p50", "p95", "p99")
    ]
    shares = [
        "" if row[name] is None else f"{row[name]:.0%}"
        for name in ("offered_share", "exact_share", "similarity")
    ]
    reused = "" if row["reused_share"] is None else f"{row['reused_share']:.1%}"
    shown = "" if row["shown_share"] is None else f"{row['shown_share']:.0%}"
    return [
        row["method"],
        f"{row['saved_share']:.0%}",
        *times,
        *shares,
        f"{row['n_taken']} of {row['n_offers']}",
        reused,
        shown,
        f"{row['wait_ms_p99']:.1f}",
        "" if row["cancel_ms_p99"] is None else f"{row['cancel_ms_p99']:.1f}",
        f"{row['cpu_s_per_1000']:.1f}",
    ]
