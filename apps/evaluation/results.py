"""From what `edgedec eval` found to the quantities of a result file."""

from __future__ import annotations

import json
from typing import Any

from edgedec.apps.evaluation.tasks import METRICS
from edgedec.apps.measuring.facts import build_facts
from edgedec.apps.results.recording import RunMeasurement, texts_sha256
from edgedec.apps.results.result import Quantity


def measured_answers(document: dict[str, Any]) -> RunMeasurement | None:
    """Returns scores and times, by setting, with a value for each problem in the order of names.

    document: that of `apps.evaluation.report`. None: nothing was answered.
    """
    facts = document["settings"][0]["facts"]
    quantities = []
    for setting in document["settings"]:
        samples = [s for s in document["samples"] if s["setting"] == setting["label"]]
        if samples:
            quantities += _quantities(setting["label"], document["task"], samples)
    if not quantities:
        return None
    workload = {
        "task": document["task"],
        "data_sha256": facts["data_sha256"][:16],
        "how": facts["how"],
        "n_problems": max(len(quantity.values) for quantity in quantities),
        "max_new_tokens": facts["request"]["max_new_tokens"],
        "request_sha256": texts_sha256([json.dumps(facts["request"]["sampling"], sort_keys=True)]),
    }
    lost = document["noise"]["lost_share"] if "noise" in document else None
    return RunMeasurement("eval", facts["threads"], workload, quantities, build_facts(), lost)


def _quantities(label: str, task: str, samples: list[dict[str, Any]]) -> list[Quantity]:
    ordered = sorted(samples, key=lambda sample: str(sample["name"]))
    quantities = [Quantity(label, "time", "ms", True, tuple(1000 * s["seconds"] for s in ordered))]
    for metric in METRICS[task]:
        having = [sample for sample in ordered if metric.key in sample["metrics"]]
        if having and metric.name != "perplexity":  # the same values as bits per token
            unit = "share" if metric.is_share else "bits"
            values = tuple(metric.of(sample["metrics"][metric.key]) for sample in having)
            weights = tuple(sample["weight"] for sample in having)
            quantities.append(
                Quantity(label, metric.name, unit, metric.is_lower_better, values, weights=weights)
            )
    return quantities
