"""How results of `edgedec bench --prompts` are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgedec.apps.bench.prompts_rows import (
    Round,
    Row,
    drafter_counts,
    lost_share,
    prompt_row,
    summary_row,
)
from edgedec.apps.bench.report import written
from edgedec.apps.console.tables import table
from edgedec.apps.measuring.facts import build_facts, device_facts
from edgedec.apps.measuring.loop import Plan
from edgedec.models.manifest import BundleManifest
from edgedec.runtime.engine.prompt_files import FilePrompt


@dataclass(frozen=True)
class Outcome:
    """Everything a run found out.

    settings: what was asked for, JSON-ready. contestants: their facts, plain first, peers last.
    n_prompt_tokens: of each prompt. rounds: complete ones, in order. missing: peers that could not
    be measured, or not to the end, with the reason. ended_by: what ended the run early.
    """

    bundle: Path
    manifest: BundleManifest
    plan: Plan
    settings: dict[str, Any]
    prompts: list[FilePrompt]
    n_prompt_tokens: list[int]
    contestants: list[dict[str, Any]]
    rounds: list[Round]
    missing: dict[str, str]
    ended_by: BaseException | None = None


def refusal(outcome: Outcome) -> str | None:
    """Returns why the results are not to be trusted, None if they are."""
    share, bound = lost_share(outcome.rounds), outcome.plan.bounds.lost_share
    if share is None or share <= bound:
        return None
    return (
        f"the run was disturbed: other processes took {share:.0%} of the CPU time, the bound is "
        f"{bound:.0%}; end what else runs here and repeat, or accept it with --allow-noise"
    )


def make_document(outcome: Outcome) -> dict[str, Any]:
    """Returns the JSON document of a run."""
    n_rounds = outcome.plan.repetitions * len(outcome.prompts)
    return {
        "bundle": str(outcome.bundle),
        "model": outcome.manifest.name,
        "quantization": outcome.manifest.quantization,
        "threads": outcome.plan.n_threads,
        "repetitions": outcome.plan.repetitions,
        "device": device_facts(),
        "build": build_facts(),
        "settings": outcome.settings,
        "contestants": outcome.contestants,
        "missing": [{"name": name, "reason": why} for name, why in outcome.missing.items()],
        "rows": list(_rows(outcome)),
        "drafters": drafter_counts(outcome.rounds),
        "n_rounds": len(outcome.rounds),
        "n_rounds_planned": n_rounds,
        "noise": {
            "bound": outcome.plan.bounds.lost_share,
            "lost_share": lost_share(outcome.rounds),
        },
    }


def _rows(outcome: Outcome) -> Iterator[Row]:
    """Yields the rows: all prompts together, then each category, then each prompt."""
    of_prompts = _prompt_rows(outcome)
    categories = dict.fromkeys(row["category"] for row in of_prompts)
    names = [facts["name"] for facts in outcome.contestants]
    for level, values in (("all", [None]), ("category", list(categories))):
        for value in values:
            for name in names:
                rows = [
                    r for r in of_prompts if r["name"] == name and value in (None, r["category"])
                ]
                if rows:
                    yield summary_row(level, rows)
    yield from of_prompts


def _prompt_rows(outcome: Outcome) -> list[Row]:
    peers = [facts["name"] for facts in outcome.contestants if facts["runtime"] != "edgedec"]
    rows: list[Row] = []
    for i, prompt in enumerate(outcome.prompts):
        rounds = [round_ for round_ in outcome.rounds if round_.i_prompt == i]
        share = lost_share(rounds)
        for facts in outcome.contestants if rounds else ():
            row = prompt_row(facts["name"], prompt, rounds, peers)
            if row is not None:
                row["n_prompt_tokens"] = outcome.n_prompt_tokens[i]
                row["is_noisy"] = share is not None and share > outcome.plan.bounds.lost_share
                rows.append(row)
    return rows


def render(document: dict[str, Any], output: str) -> str:
    """Returns the document as ``md``, ``json``, ``csv`` or ``jsonl``."""
    return written(document, output, _flat_rows, _markdown)


def _flat_rows(document: dict[str, Any]) -> list[Row]:
    """Returns the rows, each with what it was measured on."""
    build, settings = document["build"], document["settings"]
    common = {
        "build": f"edgedec {build['edgedec']} {build['kernels_sha256']}",
        "cpu": document["device"]["model"],
        "model": document["model"],
        "threads": document["threads"],
        "repetitions": document["repetitions"],
        "max_new_tokens": settings["max_new_tokens"],
        "template": settings["template"],
        "learning": settings["learning"],
        "temperature": settings["temperature"],
        "seed": settings["seed"],
    }
    return [common | row for row in document["rows"]]


_SUMMARY = [
    "method", "prompts", "tokens/s", "over plain", "whole request", "worst prompt",
    "over fastest peer", "acceptance", "tokens per pass", "identical",
]  # fmt: skip


def _markdown(document: dict[str, Any]) -> str:
    rows = document["rows"]
    levels = {level: [r for r in rows if r["level"] == level] for level in ("all", "category")}
    parts = [
        table(_SUMMARY, [_summary_cells(row) for row in levels["all"]]),
        table(
            ["category", *_SUMMARY],
            [[row["category"], *_summary_cells(row)] for row in levels["category"]],
        ),
        _prompt_table(document),
        _drafter_table(document["drafters"]),
        "".join(f"- {m['name']} was not measured: {m['reason']}\n" for m in document["missing"]),
        _facts(document),
    ]
    return "\n".join(part for part in parts if part)


def _summary_cells(row: Row) -> list[str]:
    worst = row["worst_speedup"]
    return [
        row["name"],
        str(row["n_prompts"]),
        _number(row["tokens_per_s"], ".1f"),
        _number(row["speedup"], ".2f"),
        _number(row["request_speedup"], ".2f"),
        "" if worst is None else f"{worst:.2f} {row['worst_prompt']}",
        _number(row["over_fastest_peer"], ".2f"),
        _number(row["acceptance_rate"], ".0%"),
        _number(row["block_efficiency"], ".2f"),
        f"{row['n_identical']} of {row['n_prompts']}",
    ]


def _prompt_table(document: dict[str, Any]) -> str:
    """Returns one line per prompt: plain's speed, and how many times that the others reach."""
    names = [facts["name"] for facts in document["contestants"]]
    by_prompt: dict[str, dict[str, Row]] = {}
    for row in document["rows"]:
        if row["level"] == "prompt":
            by_prompt.setdefault(row["prompt"], {})[row["name"]] = row
    lines = []
    for prompt, rows in by_prompt.items():
        plain = rows[names[0]]
        lines.append(
            [
                prompt + (" (noisy)" if plain["is_noisy"] else ""),
                plain["category"],
                f"{plain['n_prompt_tokens']} + {plain['n_new_tokens']}",
                _number(plain["tokens_per_s"], ".1f"),
                *(_ratio_cell(rows.get(name)) for name in names[1:]),
                plain["fastest_peer"] or "",
            ]
        )
    header = ["prompt", "category", "tokens", "plain tokens/s", *names[1:], "fastest peer"]
    return table(header, lines)


def _ratio_cell(row: Row | None) -> str:
    if row is None:
        return ""
    return _number(row["speedup"], ".2f")


def _drafter_table(drafters: dict[str, dict[str, Any]]) -> str:
    return table(
        ["method", "drafter", "proposed", "evaluated", "accepted", "acceptance"],
        [
            [
                name,
                drafter,
                str(counts["n_proposed"]),
                str(counts["n_evaluated"]),
                str(counts["n_accepted"]),
                f"{counts['acceptance_rate']:.0%}",
            ]
            for name, counts_of in drafters.items()
            for drafter, counts in counts_of.items()
        ],
    )


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _facts(document: dict[str, Any]) -> str:
    """Returns what the numbers rest on, one fact per line."""
    settings, noise, device = document["settings"], document["noise"], document["device"]
    build, lost = document["build"], document["noise"]["lost_share"]
    others = "unknown" if lost is None else f"{lost:.1%}"
    template = {"chat": "in the chat template", "raw": "as they are, without the chat template"}
    learning = {
        "hot": "methods keep what they learned from earlier prompts of the same repetition",
        "cold": "methods forget what they learned before every prompt",
    }
    end = "end tokens ignored" if settings["ignore_eos"] else "or to the end token"
    temperature, seed = settings["temperature"], settings["seed"]
    choice = f"temperature {temperature:g}, seed {seed}" if temperature else "greedy"
    lines = [
        f"{document['model']} ({document['quantization']}), {document['threads']} threads; "
        f"{choice}, {settings['max_new_tokens']} new tokens {end}; prompts "
        f"{template[settings['template']]}: {', '.join(settings['prompts'])}",
        f"{learning[settings['learning']]}; nothing of a prompt is in the KV cache before",
        f"{document['repetitions']} repetitions, contestants interleaved on every prompt; speeds "
        "exclude prefill, whole requests include it; ratios are medians over repetitions and "
        "geometric means over prompts",
        "acceptance: accepted / evaluated drafted tokens; tokens per pass: tokens emitted / passes "
        "of the target model after prefill; identical: the token ids are plain's",
        f"device: {device['model']}, {device['n_usable']} logical cores usable, "
        f"{device['platform']}",
        f"build: edgedec {build['edgedec']}, kernels {build['kernels_sha256']}, "
        f"onnxruntime {build['onnxruntime']}, Python {build['python']}",
        f"CPU time taken by others: {others} (bound {noise['bound']:.0%})",
        *(_contestant_fact(facts) for facts in document["contestants"]),
    ]
    if document["n_rounds"] < document["n_rounds_planned"]:
        done, planned = document["n_rounds"], document["n_rounds_planned"]
        lines.append(f"the run ended early, after {done} of {planned} rounds")
    return "".join(f"- {line}\n" for line in lines)


def _contestant_fact(facts: dict[str, Any]) -> str:
    if facts["runtime"] == "edgedec":
        known = {True: "lossless", False: "approximate", None: "never ran"}
        lossless = facts["lossless"]
        return f"{facts['name']}: edgedec, {known.get(lossless, f'lossless {lossless}')}"
    parts = [facts["through"], facts.get("format"), facts.get("options"), facts.get("mode")]
    return f"{facts['name']}: " + ", ".join(part for part in parts if part)
