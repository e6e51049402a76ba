"""`edgedec bench --ttft`: how long a first token takes, and what provisional ones are worth."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from edgedec.apps.bench.output import Printing, refusal
from edgedec.apps.bench.report import written
from edgedec.apps.bench.results import measured_ttft
from edgedec.apps.console.option import option
from edgedec.apps.console.progress import ProgressBars, count_amount
from edgedec.apps.console.tables import table
from edgedec.apps.console.terminal import write_out
from edgedec.apps.measuring.facts import build_facts, device_facts
from edgedec.apps.measuring.loop import Measurement, Plan, Sample, measure
from edgedec.apps.options.passes import parse_counts
from edgedec.apps.results.recording import texts_sha256
from edgedec.apps.results.result import Scalar
from edgedec.models.errors import ConfigError, EdgedecError
from edgedec.models.kv_maps import KVMapsEntry, own_maps
from edgedec.models.manifest import BundleManifest, read_manifest
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.system.files import read_text

EXACT, PROGRESSIVE = "exact", "progressive"
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TtftOptions:
    """Options for measuring first tokens."""

    ttft: Annotated[
        str | None,
        option("N,..", "Measure the time to the first token for prompts of these lengths."),
    ] = None
    text: Annotated[Path | None, option("FILE", "Text that --ttft takes its prompts from.")] = None
    answer_tokens: Annotated[
        int | None,
        option("N", "Tokens to generate after each prompt of --ttft (default 64).", min=1),
    ] = None


class TtftJob:
    """One way to read prompts of one length. The value is the seconds of a whole request.

    Every run reads another part of the text, the same one in every mode.
    """

    def __init__(
        self, engine: Engine, mode: str, n: int, tokens: Sequence[int], n_new: int
    ) -> None:
        self.mode, self.n = mode, n
        self._n_runs = 0
        self._engine = engine
        self._tokens = tokens
        self._config = GenerationConfig(
            max_new_tokens=n_new, method="plain", ignore_eos=True, prefill=mode
        )

    @property
    def name(self) -> str:
        """Such as `ttft2048 progressive`."""
        return f"ttft{self.n} {self.mode}"

    def measure(self) -> Sample:
        """Returns the time of a request, and its `GenerationResult`."""
        places = len(self._tokens) - self.n + 1
        start = self._n_runs * self.n % places
        self._n_runs += 1
        prompt = list(self._tokens[start : start + self.n])
        self._engine.forget_prompts()
        cpu_s, started_s = time.process_time(), time.perf_counter()
        result = self._engine.generate(prompt, self._config)
        return Sample(time.perf_counter() - started_s, time.process_time() - cpu_s, result=result)


def bench_ttft(bundle: Path, ttft_options: TtftOptions, plan: Plan, printing: Printing) -> None:
    """Measures first tokens and prints what was found."""
    manifest = read_manifest(bundle)
    manifest.check_writes()
    text, maps = _checked(ttft_options, manifest)
    lengths, n_new = parse_counts(ttft_options.ttft, "", "--ttft"), ttft_options.answer_tokens or 64
    context = max(lengths) + n_new
    loading = EngineOptions(
        threads=plan.n_threads,
        context=context,
        draft=False,
        provider=plan.provider,
        device=plan.device,
    )
    with load(bundle, loading) as engine, ProgressBars(count_amount) as bars:
        tokens = _tokens(engine, text, max(lengths))
        jobs = [
            TtftJob(engine, mode, n, tokens, n_new)
            for n in lengths
            for mode in (EXACT, PROGRESSIVE)
        ]
        measurement = measure(jobs, plan, on_progress=bars.report)
    if measurement.noisy() and not printing.allow_noise:
        raise EdgedecError(refusal(measurement))
    share = _relative_flops(maps, manifest)
    rows = [
        _row(exact, other, measurement) for exact, other in zip(jobs[::2], jobs[1::2], strict=True)
    ]
    document = {
        "bundle": str(bundle),
        "model": manifest.name,
        "threads": plan.n_threads,
        "repetitions": plan.repetitions,
        "kv_maps": {**dataclasses.asdict(maps), "relative_flops": share},
        "device": device_facts(),
        "build": build_facts(),
        "rows": rows,
    }
    write_out(written(document, printing.output.value, lambda d: d["rows"], _markdown))
    read = read_text(text)
    workload: dict[str, Scalar] = {"texts_sha256": texts_sha256([read]), "answer_tokens": n_new}
    times = _times(jobs, measurement)
    printing.recorder.save(
        bundle, manifest, measured_ttft(times, measurement, plan.n_threads, workload)
    )


def _checked(ttft_options: TtftOptions, manifest: BundleManifest) -> tuple[Path, KVMapsEntry]:
    """Returns the text that prompts are from, and the KV maps that are measured.

    Raises:
        ConfigError: One of them is missing, or an option does not go with them.
    """
    if ttft_options.text is None:
        raise ConfigError("--ttft needs a text to cut prompts from: --text FILE")
    maps = own_maps(manifest.auxiliary)
    if maps is None:
        raise ConfigError("--ttft compares with KV maps, which this bundle lacks: fit them with "
                          "`edgedec train kv`")  # fmt: skip
    return ttft_options.text, maps


def _times(jobs: Sequence[TtftJob], measurement: Measurement) -> dict[int, dict[str, list[float]]]:
    """Returns length -> what came -> milliseconds until then, of each repetition."""
    times: dict[int, dict[str, list[float]]] = {}
    for exact, other in zip(jobs[::2], jobs[1::2], strict=True):
        results = _results(other, measurement)
        times[exact.n] = {
            EXACT: [result.ttft_ms for result in _results(exact, measurement)],
            "provisional": [result.provisional_ms for result in results],
            "confirmed": [result.ttft_ms for result in results],
        }
    return times


def _relative_flops(maps: KVMapsEntry, manifest: BundleManifest) -> float:
    """Returns the work before the first provisional token over that of exact prefill.

    That of the layers alone; the maps are a hundredth of it where keys are few.
    """
    return maps.exit_layer / manifest.target.config.n_layers


def _tokens(engine: Engine, path: Path, least: int) -> list[int]:
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; expected a UTF-8 text") from None
    tokens = engine.tokenizer.encode(text)
    if len(tokens) < least:
        raise ConfigError(f"{path} has {len(tokens)} tokens, expected at least {least}")
    return tokens


def _row(exact: TtftJob, other: TtftJob, measurement: Measurement) -> Row:
    """Returns medians of a length over the repetitions that count."""
    pairs = list(zip(*(_results(job, measurement) for job in (exact, other)), strict=True))
    shown = [o.stats.n_provisional for _, o in pairs]
    held = [o.stats.n_confirmed for _, o in pairs]
    total = [measurement.series[job.name].summary.median for job in (other, exact)]
    return {
        "n": exact.n,
        "exact_ms": statistics.median(e.ttft_ms for e, _ in pairs),
        "provisional_ms": statistics.median(o.provisional_ms for _, o in pairs),
        "confirmed_ms": statistics.median(o.ttft_ms for _, o in pairs),
        "provisional_ratio": statistics.median(o.provisional_ms / e.ttft_ms for e, o in pairs),
        "confirmed_ratio": statistics.median(o.ttft_ms / e.ttft_ms for e, o in pairs),
        "total_ratio": total[0] / total[1],
        "n_provisional": sum(shown),
        "n_held": sum(held),
        "held_share": sum(held) / sum(shown) if sum(shown) else None,
        "n_same_text": sum(e.token_ids == o.token_ids for e, o in pairs),
        "n_prompts": len(pairs),
        "is_noisy": any(job.name in measurement.noisy() for job in (exact, other)),
    }


def _results(job: TtftJob, measurement: Measurement) -> list[GenerationResult]:
    return [sample.result for sample in measurement.series[job.name].samples]


def _markdown(document: dict[str, Any]) -> str:
    header = ["prompt", "exact ms", "provisional ms", "of exact", "confirmed ms", "of exact",
              "whole request", "held", "same text"]  # fmt: skip
    maps = document["kv_maps"]
    source = f"layer {maps['exit_layer']}" if "exit_layer" in maps else "the draft model"
    facts = (
        f"- maps from {source}, fitted on {maps['n_tokens']:,} tokens of {maps['corpus']}: "
        f"{maps['relative_flops']:.2f} of the layers' work before the first token\n"
        f"- {document['repetitions']} repetitions, interleaved, each of another part of the text; "
        "medians, ratios of the same prompt; whole request: of the exact one\n"
    )
    return table(header, [_cells(row) for row in document["rows"]]) + "\n" + facts


def _cells(row: Row) -> list[str]:
    held = "" if row["held_share"] is None else f"{row['held_share']:.0%}"
    return [
        f"{row['n']}" + (" (noisy)" if row["is_noisy"] else ""),
        f"{row['exact_ms']:.0f}",
        f"{row['provisional_ms']:.0f}",
        f"{row['provisional_ratio']:.2f}",
        f"{row['confirmed_ms']:.0f}",
        f"{row['confirmed_ratio']:.2f}",
        f"{row['total_ratio']:.2f}",
        f"{held} of {row['n_provisional']}",
        f"{row['n_same_text']} of {row['n_prompts']}",
    ]
