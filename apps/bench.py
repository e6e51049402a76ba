"""`edgedec bench`: how fast a bundle runs here, against the machine's limits and other runtimes."""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from edgedec.apps import options
from edgedec.apps.bench_jobs import PassJob, Test, limit_jobs, make_tests
from edgedec.apps.bench_report import Outcome, make_document, render
from edgedec.apps.bench_work import read_work
from edgedec.apps.peers import EDGEDEC, PEERS, Runtime
from edgedec.apps.peers.client import PeerError, Worker
from edgedec.apps.progress import ProgressBars, count_amount
from edgedec.apps.terminal import note
from edgedec.models.errors import ConfigError, EdgedecError
from edgedec.models.manifest import BundleManifest, read_manifest
from edgedec.runtime.machine import physical_cores
from edgedec.runtime.measuring.energy import find_meter
from edgedec.runtime.measuring.loop import Job, Measurement, Plan, measure

_SETTLE_S = 0.02


class Output(StrEnum):
    """How results are written."""

    MD = "md"
    JSON = "json"
    CSV = "csv"
    JSONL = "jsonl"


@dataclass(frozen=True)
class Rivals:
    """Peers to run. models, pythons: by name; ``""`` stands for all others."""

    names: tuple[str, ...] = ()
    models: dict[str, str] = field(default_factory=dict)
    pythons: dict[str, str] = field(default_factory=dict)

    def model(self, name: str) -> str:
        return self.models.get(name) or self.models[""]

    def python(self, name: str) -> str:
        return self.pythons.get(name) or self.pythons.get("") or sys.executable


def bench(
    bundle: options.Bundle,
    prompt_tokens: Annotated[
        str,
        typer.Option("--prompt-tokens", "-p", metavar="N,..", help="Lengths of prefill; 0: none."),
    ] = "512",
    new_tokens: Annotated[
        str, typer.Option("--new-tokens", "-n", metavar="N,..", help="Tokens to decode; 0: none.")
    ] = "128",
    rows: Annotated[
        str,
        typer.Option("--rows", "-m", metavar="N,..", help="Rows of verify passes; 0: none."),
    ] = "1,2,4,8,16",
    depth: Annotated[
        str,
        typer.Option("--depth", "-d", metavar="N,..", help="Tokens in the KV cache before."),
    ] = "0",
    threads: Annotated[
        int | None,
        typer.Option("--threads", "-t", min=1, help="CPU threads; all physical cores by default."),
    ] = None,
    repetitions: Annotated[
        int, typer.Option("--repetitions", "-r", min=1, help="Times everything is measured.")
    ] = 5,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="Table, document, or one record per row.")
    ] = Output.MD,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw roofline and verify cost (extra `plots`)."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="NAME,..", help=f"Measure peers, too: {', '.join(PEERS)}."),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(metavar="FILE.gguf", help="Model file the peers load.")
    ] = None,
    peer_model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="Another model for one peer; repeatable."),
    ] = None,
    peer_python: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]PYTHON", help="Python that has the peers; repeatable."),
    ] = None,
    allow_noise: Annotated[
        bool, typer.Option("--allow-noise", help="Print disturbed results, too, and mark them.")
    ] = False,
    debug: options.Debug = False,
) -> None:
    """Measure prefill (pp), decode (tg) and verify passes, and what bounds them.

    Everything is measured in turn, over and over, so that ratios hold on a busy machine. Results
    disturbed beyond a stated bound are refused (exit code 1).

    Examples:

      edgedec bench smollm2.edgedec

      edgedec bench smollm2.edgedec -p 512 -n 128 -d 0,4096 -t 2 -o json

      edgedec bench smollm2.edgedec --against llama.cpp --model SmolLM2.gguf --plot speed.png
    """
    tests = make_tests(
        parse_counts(prompt_tokens, "--prompt-tokens"),
        parse_counts(new_tokens, "--new-tokens"),
        parse_counts(rows, "--rows"),
        parse_counts(depth, "--depth"),
    )
    if not tests:
        raise ConfigError("nothing to measure: -p, -n and -m are all 0")
    rivals = parse_rivals(against, model, peer_model, peer_python)
    draw = _plotter() if plot is not None else None
    manifest = read_manifest(bundle)
    plan = Plan(
        repetitions=repetitions,
        n_threads=threads or physical_cores(),
        extra_repetitions=0 if allow_noise else repetitions,
        settle_s=_SETTLE_S,
    )
    outcome = run_bench(bundle, manifest, tests, plan, rivals)
    noisy = outcome.measurement.noisy()
    if noisy and not allow_noise:
        raise EdgedecError(refusal(outcome.measurement))
    document = make_document(outcome)
    sys.stdout.write(render(document, output.value))
    if draw is not None and plot is not None:
        draw(document, plot, read_work(manifest.models["target"]))
        note(f"drew {plot}")


def parse_counts(text: str, option: str) -> tuple[int, ...]:
    """Returns the numbers written as ``1,2,4``, each once; anything else is a usage error."""
    try:
        counts = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        counts = (-1,)
    if min(counts) < 0:
        raise typer.BadParameter(f"got {text!r}, expected numbers as in 1,2,4", param_hint=option)
    return counts


def parse_rivals(
    against: str | None,
    model: Path | None,
    peer_model: list[str] | None,
    peer_python: list[str] | None,
) -> Rivals:
    """Returns the peers that were asked for; ConfigError if the options do not fit together."""
    names = tuple(dict.fromkeys(n.strip() for n in (against or "").split(",") if n.strip()))
    for name in names:
        if name not in PEERS:
            raise ConfigError(f"--against got {name!r}, expected some of {', '.join(PEERS)}")
    models = _by_name(peer_model, "--peer-model") | ({"": str(model)} if model else {})
    for name in names:
        path = models.get(name) or models.get("")
        if path is None:
            raise ConfigError(f"{name} has no model: name one with --model FILE.gguf")
        if not Path(path).exists():
            raise ConfigError(f"there is no model at {path} for {name}")
    return Rivals(names, models, _by_name(peer_python, "--peer-python"))


def _by_name(pairs: list[str] | None, option: str) -> dict[str, str]:
    """Returns values written as NAME=VALUE, or VALUE alone for all."""
    found: dict[str, str] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if equals and name in PEERS:
            found[name] = value
        elif option == "--peer-python" and "/" in pair:
            found[""] = pair
        else:
            raise ConfigError(f"{option} got {pair!r}, expected one of {', '.join(PEERS)}=PATH")
    return found


def run_bench(
    bundle: Path, manifest: BundleManifest, tests: list[Test], plan: Plan, rivals: Rivals
) -> Outcome:
    """Returns what was measured, of edgedec and of every peer that could be started."""
    entry = manifest.models["target"]
    context = max(test.n_positions for test in tests)
    if context > entry.context:
        raise ConfigError(
            f"the tests need {context} positions, the bundle was exported for {entry.context}: "
            "measure less, or export with a larger --context"
        )
    ids = np.random.default_rng(0).integers(0, entry.config.vocab_size, context + 1)
    spec = {"threads": plan.n_threads, "context": context, "ids": [int(i) for i in ids]}
    missing: dict[str, str] = {}
    meter = find_meter()
    with ExitStack() as stack, ProgressBars(count_amount) as bars:
        if meter is not None:
            stack.callback(meter.close)
        bars.report("load", 0, 1 + len(rivals.names))
        own = stack.enter_context(Worker(EDGEDEC, sys.executable, {**spec, "path": str(bundle)}))
        workers = [own]
        for i, name in enumerate(rivals.names):
            bars.report("load", 1 + i, 1 + len(rivals.names))
            peer = _start(PEERS[name], rivals, spec, missing)
            if peer is not None:
                workers.append(stack.enter_context(peer))
        jobs: list[Job] = [*limit_jobs(plan.n_threads)]
        jobs += [PassJob(worker, test, meter) for test in tests for worker in workers]
        measurement = measure(jobs, plan, on_progress=bars.report)
        loaded = {worker.runtime.name: _loaded(worker, bundle, rivals) for worker in workers}
        missing |= {w.runtime.name: w.error for w in workers if w.error is not None}
    return Outcome(
        bundle=bundle,
        manifest=manifest,
        tests=tests,
        plan=plan,
        measurement=measurement,
        loaded=loaded,
        missing=missing,
        energy_by=meter.name if meter is not None else None,
    )


def _start(
    runtime: Runtime, rivals: Rivals, spec: dict[str, Any], missing: dict[str, str]
) -> Worker | None:
    """Returns a peer with its model loaded; or None, with the reason put into ``missing``."""
    path = rivals.model(runtime.name)
    try:
        return Worker(runtime, rivals.python(runtime.name), {**spec, "path": path})
    except PeerError as error:
        missing[runtime.name] = str(error)
        return None


def _loaded(worker: Worker, bundle: Path, rivals: Rivals) -> dict[str, Any]:
    """Returns what a runtime loaded and what that took."""
    is_own = worker.runtime is EDGEDEC
    peak: float | None = None
    with suppress(PeerError):
        peak = worker.ask({"op": "memory"})["peak_rss_mb"]
    return {
        "model": str(bundle) if is_own else rivals.model(worker.runtime.name),
        **worker.facts,
        "load_ms": worker.load_ms,
        "first_token_ms": worker.first_token_ms,
        "peak_rss_mb": peak,
    }


def refusal(measurement: Measurement) -> str:
    """Returns why a measurement is not printed, in one line."""
    noisy = measurement.noisy()
    name, reason = next(iter(noisy.items()))
    others = f" (and {len(noisy) - 1} more results)" if len(noisy) > 1 else ""
    return (
        f"the run was disturbed: {name}{others}: {reason}; end what else runs here and repeat, "
        "or print marked results with --allow-noise"
    )


def _plotter() -> Any:
    """Returns the function that draws; ConfigError without matplotlib, before anything runs."""
    try:
        from edgedec.apps.bench_plot import draw
    except ImportError as error:
        raise ConfigError(
            f"--plot needs matplotlib ({error}): pip install matplotlib, or edgedec[plots]"
        ) from None
    return draw
