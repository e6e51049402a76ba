"""What samples say of the settings they were taken under, as a document and as text."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from edgedec.apps.console.tables import table
from edgedec.apps.evaluation.frontier import (
    DRAFT_ALONE,
    frontier_of,
    render_notes,
    render_table,
    render_verdict,
)
from edgedec.apps.evaluation.samples import Sample, Samples, Setting
from edgedec.apps.evaluation.scores import (
    difference,
    flips,
    followed,
    interval_text,
    kept,
    number_text,
    score,
    time_ratio,
    tokens_by_origin,
    tokens_per_s,
)
from edgedec.apps.evaluation.tasks import METRICS, Metric
from edgedec.apps.measuring.disturbance import noise_text
from edgedec.apps.measuring.intervals import N_RESAMPLES, sign_test
from edgedec.models.errors import ConfigError
from edgedec.runtime.decoding.strategy import TARGET

Row = dict[str, Any]


def make_document(
    settings: Sequence[Setting],
    held: Samples,
    names: Sequence[str] | None,
    facts: dict[str, Any],
    with_frontier: bool = False,
) -> dict[str, Any]:
    """Returns everything about an evaluation, JSON-ready.

    names: samples asked for; all there are when None. The first setting is what the others are
    compared with.

    Raises:
        ConfigError: The settings are of different tasks or data, or a frontier lacks a reference.
    """
    check_comparable(settings)
    settings = with_own_labels(settings)
    task = settings[0].facts["task"]
    samples_of = [_by_name(held.of(setting.fingerprint), names) for setting in settings]
    metrics = METRICS[task]
    swept = frontier_of(settings, samples_of, metrics[0]) if with_frontier else None
    return {
        "task": task,
        "n_problems": None if names is None else len(set(names)),
        "resamples": N_RESAMPLES,
        **facts,
        "settings": [
            _setting_row(setting, list(samples.values()), metrics)
            for setting, samples in zip(settings, samples_of, strict=True)
        ],
        "comparisons": [
            _comparison(settings[0], samples_of[0], setting, samples, metrics[0])
            for setting, samples in zip(settings[1:], samples_of[1:], strict=True)
        ],
        "frontier": swept,
        "samples": [
            {"setting": setting.label, **sample.to_dict()}
            for setting, samples in zip(settings, samples_of, strict=True)
            for sample in samples.values()
        ],
    }


def _by_name(samples: Sequence[Sample], names: Sequence[str] | None) -> dict[str, Sample]:
    """Returns samples in the order of ``names``, whatever order they were taken in."""
    by_name = {sample.name: sample for sample in samples}
    return by_name if names is None else {name: by_name[name] for name in names if name in by_name}


def check_comparable(settings: Sequence[Setting]) -> None:
    """Raises a ConfigError unless the settings are of the same task and data."""
    for key, what in (("task", "tasks"), ("data_sha256", "data"), ("cut", "windows")):
        values = {str(setting.facts.get(key)) for setting in settings}
        if len(values) > 1:
            raise ConfigError(
                f"cannot compare samples of different {what}: {', '.join(sorted(values))}"
            )
    if settings[0].facts.get("task") not in METRICS:
        raise ConfigError(f"unknown task {settings[0].facts.get('task')!r} in the samples")


def with_own_labels(settings: Sequence[Setting]) -> list[Setting]:
    """Returns the settings, those of equal labels with their bundle's name, or more, added."""
    labels = [setting.label for setting in settings]
    for key in ("bundle", "fingerprint"):
        n_with = Counter(labels)
        for i, setting in enumerate(settings):
            more = setting.facts.get(key, "") if key == "bundle" else setting.fingerprint[:6]
            if n_with[labels[i]] > 1:
                labels[i] += f" {more}"
    pairs = zip(settings, labels, strict=True)
    return [dataclasses.replace(setting, label=label) for setting, label in pairs]


def _setting_row(setting: Setting, samples: list[Sample], metrics: Sequence[Metric]) -> Row:
    seconds = sum(sample.seconds for sample in samples)
    return {
        "label": setting.label,
        "fingerprint": setting.fingerprint,
        "facts": setting.facts,
        "lossless": all(sample.lossless for sample in samples),
        "n_samples": len(samples),
        "metrics": {metric.name: score(samples, metric) for metric in metrics},
        "seconds": seconds,
        "seconds_per_sample": seconds / len(samples) if samples else None,
        "n_prompt_tokens": sum(sample.n_prompt_tokens for sample in samples),
        "n_new_tokens": sum(sample.n_new_tokens for sample in samples),
        "tokens_per_s": tokens_per_s(samples),
        "tokens_by_origin": tokens_by_origin(samples),
        "false_positives": _false_positives(samples),
        "followed": None if (kept_to := followed(samples)) is None else asdict(kept_to),
        "n_cut_off": sum(sample.finish_reason in ("length", "context") for sample in samples),
    }


def _false_positives(samples: list[Sample]) -> dict[str, int] | None:
    """Returns how many chosen answers pass the tests that chose them, and how many of those fail.

    None where no tests chose.
    """
    passing = [sample for sample in samples if sample.metrics.get("shown") == 1]
    if not any("shown" in sample.metrics for sample in samples):
        return None
    n_false = sum(sample.metrics["passed"] < 1 for sample in passing)
    return {"n_false": n_false, "n_passing": len(passing)}


def _comparison(
    first: Setting,
    first_samples: dict[str, Sample],
    other: Setting,
    other_samples: dict[str, Sample],
    metric: Metric,
) -> Row:
    """Returns what changes from the first setting to another, over the samples both have."""
    names = [
        name
        for name, sample in first_samples.items()
        if name in other_samples and metric.key in sample.metrics
    ]
    firsts = [first_samples[name] for name in names]
    others = [other_samples[name] for name in names]
    sign = -1.0 if metric.is_lower_better else 1.0
    gains = [
        sign * (b.metrics[metric.key] - a.metrics[metric.key])
        for a, b in zip(firsts, others, strict=True)
    ]
    n_wins, n_losses = sum(g > 0 for g in gains), sum(g < 0 for g in gains)
    return {
        "first": first.label,
        "other": other.label,
        "metric": metric.name,
        "n_common": len(names),
        "difference": difference(firsts, others, metric),
        "kept": kept(firsts, others, metric),
        "time_ratio": time_ratio(firsts, others),
        "flips": flips(firsts, others, metric),
        "n_wins": n_wins,
        "n_losses": n_losses,
        "n_ties": len(names) - n_wins - n_losses,
        "p_value": sign_test(n_wins, n_losses),
        "n_same_answer": sum(a.answer == b.answer for a, b in zip(firsts, others, strict=True)),
    }


def render(document: dict[str, Any]) -> str:
    """Returns the document as Markdown."""
    metrics, swept = METRICS[document["task"]], document["frontier"]
    against = table(
        ["against the first", "common", "difference", "kept", "flips", "wins", "losses", "ties",
         "p", "same answer"],
        [_comparison_cells(row, metrics[0]) for row in document["comparisons"]],
    )  # fmt: skip
    first = _settings_table(document, metrics) if swept is None else render_table(swept)
    last = "" if swept is None else render_verdict(swept) + "\n"
    return "\n".join(part for part in (first, against, _facts(document), last) if part)


def _settings_table(document: dict[str, Any], metrics: Sequence[Metric]) -> str:
    rows = [
        _setting_cells(row, document["comparisons"][i - 1] if i else None, metrics)
        for i, row in enumerate(document["settings"])
    ]
    names = [f"{metric.name} (95 %)" for metric in metrics]
    header = ["setting", "samples", *names, "t/s", "seconds", "s/sample", "time of the first"]
    return table(header, rows)


def _setting_cells(row: Row, compared: Row | None, metrics: Sequence[Metric]) -> list[str]:
    ratio = {"value": 1.0} if compared is None else compared["time_ratio"]
    return [
        row["label"] + ("" if row["lossless"] else " (approximate)"),
        str(row["n_samples"]),
        *(interval_text(row["metrics"][metric.name], metric.is_share) for metric in metrics),
        number_text(row["tokens_per_s"], ".1f"),
        number_text(row["seconds"], ".1f"),
        number_text(row["seconds_per_sample"], ".2f"),
        interval_text(ratio, is_share=False, digits=2),
    ]


def _comparison_cells(row: Row, metric: Metric) -> list[str]:
    return [
        row["other"],
        str(row["n_common"]),
        interval_text(row["difference"], metric.is_share, sign="+"),
        interval_text(row["kept"], is_share=True),
        interval_text(row["flips"], is_share=True),
        str(row["n_wins"]),
        str(row["n_losses"]),
        str(row["n_ties"]),
        number_text(row["p_value"], ".2g"),
        str(row["n_same_answer"]),
    ]


def _shares(tokens_by_origin: dict[str, int]) -> str:
    n_tokens = sum(tokens_by_origin.values())
    return ", ".join(f"{name} {n / n_tokens:.1%}" for name, n in tokens_by_origin.items())


def _how_taken(samples: Sequence[Row]) -> str:
    if (most := max((sample["n_at_once"] for sample in samples), default=1)) > 1:
        return f"up to {most} problems at a time; each takes longer than alone"
    return "settings took turns on every problem"


def _facts(document: dict[str, Any]) -> str:
    """Returns what the numbers rest on, one fact per line."""
    lines = [*_facts_of_run(document), *_facts_of_comparisons(document)]
    if held_by := document.get("programs_held_by"):
        lines.append(f"programs held by: {', '.join(held_by)}")
    rows = document["settings"]
    lines += [f"{row['label']}: {fact}" for find in _FACTS for row in rows if (fact := find(row))]
    if not document["is_complete"]:
        lines.append("the run ended early; comparisons use the samples that both settings have")
    return "".join(f"- {line}\n" for line in lines)


def _facts_of_run(document: dict[str, Any]) -> list[str]:
    """Returns on what the task ran, and how its intervals and times are meant."""
    first = document["settings"][0]["facts"]
    lines = [
        f"{document['task']} on {first['data']} ({first['data_sha256'][:12]}); {first['how']}; "
        f"model {first['bundle']}, {first['threads']} threads",
        f"intervals: {document['resamples']} bootstrap resamples of the problems, seeded; width 0 "
        "means that all samples agree, not that the value is certain",
        "seconds: from prompt to last token, judging not counted; t/s: decoding, prefill excluded; "
        + _how_taken(document["samples"]),
    ]
    return [*lines, noise_text(document["noise"])] if "noise" in document else lines


def _facts_of_comparisons(document: dict[str, Any]) -> list[str]:
    """Returns what the columns of the tables that compare settings mean."""
    lines = []
    if document["comparisons"]:
        lines.append(
            "kept: share of the first setting's score; flips: share of problems that one of the "
            "two solves; wins and losses: samples better or worse than the first setting's; p: "
            "McNemar's exact test"
        )
    if swept := document["frontier"]:
        lines += [
            f"frontier: over the {swept['n_problems']} problems that every setting has answered; "
            "times are of whole requests, catch-up included; cost in the paper: without it",
            f"by the target: tokens it gave or, in lossless settings, checked; {DRAFT_ALONE}: the "
            "draft model, which never waits for the target model",
            *render_notes(swept),
        ]
    return lines


def _origins_fact(row: Row) -> str | None:
    origins = row["tokens_by_origin"]
    return f"tokens from {_shares(origins)}" if set(origins) - {TARGET} else None


def _false_positives_fact(row: Row) -> str | None:
    if (share := row["false_positives"]) is None:
        return None
    return (
        f"{share['n_false']} of {share['n_passing']} answers that pass the tests that chose them "
        "fail a test that was held back"
    )


def _followed_fact(row: Row) -> str | None:
    if (counts := row["followed"]) is None:
        return None
    return (
        f"{counts['n_valid']} of {counts['n_finished']} whole answers are valid; grammars take "
        f"{counts['grammar_ms']:.3f} ms for a token on average, {counts['most_grammar_ms']:.3f} ms "
        f"at most, and {counts['compile_ms']:.1f} ms to compile (median)"
    )


def _cut_off_fact(row: Row) -> str | None:
    if not row["n_cut_off"]:
        return None
    return (
        f"{row['n_cut_off']} of {row['n_samples']} answers were cut off at the limit of new tokens"
    )


_FACTS = (
    _origins_fact,
    _false_positives_fact,
    _followed_fact,
    _cut_off_fact,
)
"""Facts of one setting; None where there is nothing to say."""
