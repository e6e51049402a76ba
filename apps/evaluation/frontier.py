"""What approximate settings give: quality against time, beside lossless speculation.

Every number is over the problems that all settings have answered. Reference points are the target
model alone, the draft model alone (an engine of its own, which the other model costs nothing), and
`auto`, whose text is the target model's own: an approximate setting is worth having only where it
beats that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgedec.apps.console.tables import table
from edgedec.apps.evaluation.samples import Models, Sample, Setting
from edgedec.apps.evaluation.scores import (
    interval_text,
    kept,
    number_text,
    score,
    time_ratio,
    tokens_by_origin,
    tokens_per_s,
)
from edgedec.apps.evaluation.tasks import Metric
from edgedec.models.errors import ConfigError
from edgedec.runtime.config.switching import POLICIES
from edgedec.runtime.decoding.switching.policy import ModelRole
from edgedec.runtime.methods.method_parts import AUTO, PLAIN

DRAFT_ALONE = "draft-alone"
"""The setting that is the draft model alone."""

REFERENCES = (PLAIN, DRAFT_ALONE, AUTO)
KEEP = 0.97
"""Part of the target model's score that an approximate setting has to keep."""

GRID = (
    "ead:threshold=0.05",
    "ead:threshold=0.2",
    "ead:threshold=0.6",
    "ead:threshold=0.2,window=1,dwell=1",
    "margin:threshold=0.1",
    "bild:fallback=0.6,mode=trust",
    "bild:fallback=0.9,mode=trust",
    "bild:fallback=0.9",
)
"""Settings that are swept where none are named."""

Row = dict[str, Any]


def references_of(texts: Sequence[str]) -> Sequence[str]:
    """Returns what settings are compared with; the draft model alone where models take turns."""
    is_switching = any(text.partition(":")[0] in POLICIES for text in texts)
    return REFERENCES if is_switching else (PLAIN, AUTO)


def frontier_of(
    settings: Sequence[Setting], samples_of: Sequence[Mapping[str, Sample]], metric: Metric
) -> dict[str, Any]:
    """Returns a row for each setting and what they come to, JSON-ready.

    found: samples by problem, of each setting.

    Raises:
        ConfigError: One of the reference points is missing.
    """
    roles = _roles(settings)
    names = [name for name in samples_of[0] if all(name in samples for samples in samples_of)]
    common = {
        setting.label: [samples[name] for name in names]
        for setting, samples in zip(settings, samples_of, strict=True)
    }
    target, auto = common[roles[PLAIN]], common[roles[AUTO]]
    step_ms = _step_ms(target)
    rows = []
    for setting in settings:
        mine = common[setting.label]
        rows.append(
            {
                "label": setting.label,
                "is_reference": setting.label in roles.values(),
                "lossless": all(sample.lossless for sample in mine),
                "score": score(mine, metric),
                "kept": kept(target, mine, metric),
                "time_of_target": time_ratio(target, mine),
                "time_of_auto": time_ratio(auto, mine),
                "share_target": _share_target(setting, mine),
                "cost_paper": _cost_paper(setting, mine),
                "tokens_per_s": tokens_per_s(mine),
                "catch_up": _catch_up(mine, step_ms),
                "policy_share": _policy_share(mine),
            }
        )
    return {
        "metric": metric.name,
        "keep": KEEP,
        "n_problems": len(names),
        "references": roles,
        "settings": rows,
        "verdict": verdict(rows),
    }


def verdict(rows: Sequence[Row], keep: float = KEEP) -> dict[str, Any]:
    """Returns which approximate setting is worth having, and what comes closest.

    found: the fastest that is faster than `auto` and keeps enough, None if there is none.
    fastest_keeping: the fastest that keeps enough. best_of_faster: the one that keeps most of those
    faster than `auto`. Reference points do not count. Intervals are left out of the choice.
    """
    compared = [row for row in rows if not row["lossless"] and not row["is_reference"]]
    compared = [row for row in compared if row["kept"] and row["time_of_auto"]]
    keeping = sorted((r for r in compared if r["kept"]["value"] >= keep), key=_time)
    faster = [row for row in compared if _time(row) < 1]
    both = [row for row in keeping if _time(row) < 1]
    best = max(faster, key=lambda row: row["kept"]["value"], default=None)
    return {
        "found": both[0]["label"] if both else None,
        "fastest_keeping": keeping[0]["label"] if keeping else None,
        "best_of_faster": best["label"] if best else None,
        "n_compared": len(compared),
    }


def render_table(frontier: dict[str, Any]) -> str:
    """Returns a line for each setting, as Markdown."""
    header = [
        "setting", "lossless", f"{frontier['metric']} (95 %)", "of the target model's",
        "time of plain target", "time of lossless auto", "by the target", "cost in the paper",
        "t/s",
    ]  # fmt: skip
    return table(header, [_cells(row) for row in frontier["settings"]])


def render_notes(frontier: dict[str, Any]) -> list[str]:
    """Returns what taking turns itself cost, a line for each setting that does."""
    lines = []
    for row in frontier["settings"]:
        catch_up = row["catch_up"]
        if row["policy_share"] is None or catch_up is None:
            continue
        lines.append(
            f"{row['label']}: {catch_up['n']} catch-ups of the target model, over "
            f"{catch_up['mean_tokens']:.1f} tokens on average, took {catch_up['of_steps']:.2f} of "
            f"as many plain steps; deciding and tagging took {row['policy_share']:.2%} of decoding"
        )
    return lines


def render_verdict(frontier: dict[str, Any]) -> str:
    """Returns in one line what the rows come to."""
    rows = {row["label"]: row for row in frontier["settings"]}
    verdict = frontier["verdict"]
    keep, metric = f"{frontier['keep']:.0%}", frontier["metric"]
    if not verdict["n_compared"]:
        return "no verdict: no approximate setting can be compared yet"
    if verdict["found"]:
        row = rows[verdict["found"]]
        return (
            f"{row['label']} is faster than lossless auto: {interval_text(row['time_of_auto'])} of "
            f"its time, and it keeps {interval_text(row['kept'], True)} of the target model's "
            f"{metric}{_doubt(row, frontier['keep'])}"
        )
    text = (
        f"no approximate setting is faster than lossless auto and keeps {keep} of the target "
        f"model's {metric}"
    )
    return "; ".join([text, *_closest(rows, verdict, keep)])


def _closest(rows: Mapping[str, Row], frontier: dict[str, Any], keep: str) -> Iterator[str]:
    """Yields what came closest, from both sides."""
    if frontier["fastest_keeping"]:
        row = rows[frontier["fastest_keeping"]]
        time = interval_text(row["time_of_auto"])
        yield f"the fastest that keeps it, {row['label']}, takes {time} of auto's time"
    else:
        yield f"none keeps {keep}"
    if frontier["best_of_faster"]:
        row = rows[frontier["best_of_faster"]]
        kept_text = interval_text(row["kept"], True)
        yield f"the best of the faster ones, {row['label']}, keeps {kept_text}"
    else:
        yield "none is faster"


def _doubt(row: Row, keep: float) -> str:
    """Returns a warning where the intervals leave room for the opposite."""
    is_sure = row["kept"]["low"] >= keep and row["time_of_auto"]["high"] < 1
    return "" if is_sure else " (not certain: an interval reaches beyond what was asked)"


def _cells(row: Row) -> list[str]:
    share = row["share_target"]
    return [
        row["label"],
        "yes" if row["lossless"] else "no",
        interval_text(row["score"], True),
        interval_text(row["kept"], True),
        interval_text(row["time_of_target"], digits=2),
        interval_text(row["time_of_auto"], digits=2),
        number_text(share, ".1%"),
        number_text(row["cost_paper"], ".2f"),
        number_text(row["tokens_per_s"], ".1f"),
    ]


def _roles(settings: Sequence[Setting]) -> dict[str, str]:
    """Returns the label of each reference point."""
    roles: dict[str, str] = {}
    needed = references_of([setting.label for setting in settings])
    for setting in settings:
        if (name := _reference(setting)) is not None:
            roles.setdefault(name, setting.label)
    if missing := [name for name in needed if name not in roles]:
        raise ConfigError(
            f"a frontier needs samples of {', '.join(needed)}; {missing[0]} is missing: run "
            "`edgedec eval --frontier` with a bundle"
        )
    return roles


def _reference(setting: Setting) -> str | None:
    request = setting.facts.get("request", {})
    if request.get("switch") is not None:
        return None
    if setting.facts.get("models") == Models.DRAFT:
        return DRAFT_ALONE
    method = request.get("method")
    return method if method in (PLAIN, AUTO) else None


def _share_target(setting: Setting, samples: Sequence[Sample]) -> float | None:
    """Returns the share of tokens that are the target model's, or checked by it."""
    if setting.facts.get("models") == Models.DRAFT:
        return 0.0
    origins = tokens_by_origin(samples)
    n_tokens = sum(origins.values())
    if not n_tokens:
        return None
    is_switching = setting.facts["request"].get("switch") is not None
    n_draft = origins.get(ModelRole.DRAFT, 0) if is_switching else 0
    return 1 - n_draft / n_tokens


def _cost_paper(setting: Setting, samples: Sequence[Sample]) -> float | None:
    """Returns the cost of a token in parts of the target model's, catch-up left out.

    Source: Entropy Adaptive Decoding (arXiv 2502.06833), whose savings are 1 - that. It says
        nothing of speculation.
    """
    if _reference(setting) == PLAIN:
        return 1.0
    if setting.facts.get("models") == Models.DRAFT:
        ratio = setting.facts.get("size_ratio")
        return None if ratio is None else float(ratio)
    weighed = [
        (float(cost), sample.n_new_tokens)
        for sample in samples
        if (cost := sample.switch.get("cost_paper")) is not None
    ]
    n_tokens = sum(n for _, n in weighed)
    if len(weighed) < len(samples) or not n_tokens:
        return None
    return sum(cost * n for cost, n in weighed) / n_tokens


def _step_ms(target: Sequence[Sample]) -> float | None:
    """Returns the time of a step of plain decoding."""
    rate = tokens_per_s(target)
    return 1000 / rate if rate else None


def _catch_up(samples: Sequence[Sample], step_ms: float | None) -> dict[str, float] | None:
    """Returns what the target model's passes over missed tokens took, None where there were none.

    mean_tokens: computed by one, the newest included, so that it gives the next token as well.
    of_steps: their time in parts of as many plain steps'.
    """
    passes = [sample.switch.get("passes", {}).get(ModelRole.TARGET, {}) for sample in samples]
    n = sum(counts.get("n_catch_ups", 0) for counts in passes)
    ms = sum(counts.get("catch_up_ms", 0.0) for counts in passes)
    if not n or not step_ms:
        return None
    n_tokens = n + sum(counts["n_caught_up"] for counts in passes)
    return {"n": n, "mean_tokens": n_tokens / n, "ms": ms, "of_steps": ms / (n_tokens * step_ms)}


def _policy_share(samples: Sequence[Sample]) -> float | None:
    """Returns the part of decoding that deciding and tagging took, None where nothing switched."""
    ms = [sample.switch["policy_ms"] for sample in samples if "policy_ms" in sample.switch]
    decode_s = sum(sample.decode_s for sample in samples)
    return sum(ms) / (1000 * decode_s) if ms and decode_s else None


def _time(row: Row) -> float:
    return float(row["time_of_auto"]["value"])
