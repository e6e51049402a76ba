"""`edgedec bench`: how fast a bundle runs here, against the machine's limits and other runtimes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from edgedec.apps.bench.edits import EditsOptions, bench_edits
from edgedec.apps.bench.jobs import PassJob, Test, limit_jobs, make_tests
from edgedec.apps.bench.output import (
    Output,
    Printing,
    refusal,
)
from edgedec.apps.bench.prompts import PromptOptions, bench_prompts
from edgedec.apps.bench.report import Outcome, make_document, render
from edgedec.apps.bench.results import measured_passes
from edgedec.apps.bench.ttft import TtftOptions, bench_ttft
from edgedec.apps.bench.typing import TypingOptions, bench_typing
from edgedec.apps.bench.work import read_work
from edgedec.apps.console.option import option
from edgedec.apps.console.progress import ProgressBars, count_amount
from edgedec.apps.console.terminal import note, write_out
from edgedec.apps.measuring.loop import Job, Plan, measure
from edgedec.apps.measuring.plotters import find_plotter
from edgedec.apps.options import common as options
from edgedec.apps.options.groups import takes_groups
from edgedec.apps.options.passes import PassOptions
from edgedec.apps.peers import EDGEDEC
from edgedec.apps.peers.client import PeerError, Worker
from edgedec.apps.peers.rivals import PeerOptions, Rivals, only_keeping, only_plain
from edgedec.apps.results.recording import Recorder, SaveOptions
from edgedec.models.errors import ConfigError, EdgedecError
from edgedec.models.manifest import BundleManifest, read_manifest
from edgedec.system.energy import find_meter
from edgedec.system.processors import physical_cores

_SETTLE_S = 0.1
"""ONNX Runtime's threads, as others use them, spin for 80 ms after their last work."""


_Options = PassOptions | PromptOptions | TtftOptions | TypingOptions | EditsOptions


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Where and how often something is measured."""

    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", "-t", min=1, help="CPU threads (default: one per physical core)."
        ),
    ] = None
    provider: options.Provider = None
    device: options.Device = None
    repetitions: Annotated[
        int | None,
        typer.Option(
            "--repetitions", "-r", min=1, help="Repetitions (default 5, or 3 with --prompts)."
        ),
    ] = None
    allow_noise: Annotated[
        bool, typer.Option("--allow-noise", help="Print noisy results as well, and mark them.")
    ] = False

    def plan(self, usual_repetitions: int) -> Plan:
        """Returns the plan of a measurement that is usually repeated so often."""
        n_repetitions = self.repetitions or usual_repetitions
        return Plan(
            repetitions=n_repetitions,
            n_threads=self.threads or physical_cores(),
            provider=self.provider,
            device=self.device,
            extra_repetitions=0 if self.allow_noise else n_repetitions,
            settle_s=_SETTLE_S,
        )


@takes_groups
def bench(
    bundle: options.Bundle,
    *,
    passes: PassOptions,
    prompts: PromptOptions,
    first: TtftOptions,
    keys: TypingOptions,
    replay: EditsOptions,
    planning: PlanOptions,
    output: Annotated[Output, typer.Option("--output", "-o", help="Output format.")] = Output.MD,
    plot: Annotated[Path | None, option("FILE.png", "Draw the results (extra `plots`).")] = None,
    saving: SaveOptions,
    peers: PeerOptions,
    debug: options.Debug = False,
) -> None:
    """Measure the speed of prefill (pp), decode (tg) and verify passes.

    Also shows what limits them. --prompts measures what decoding methods gain on real prompts.
    --ttft measures the time to the first token. --typing measures what a key costs while somebody
    types, and how many keys suggestions save. --edits replays a history and predicts each next
    edit. Measurements are interleaved, so that ratios hold on
    a busy machine. Results that are too noisy are refused (exit code 1).

    Examples:

      edgedec bench smollm2.edgedec

      edgedec bench smollm2.edgedec -p 512 -n 128 -d 0,4096 -t 2 -o json

      edgedec bench smollm2.edgedec --against llama.cpp --model SmolLM2.gguf --plot speed.png

      edgedec bench smollm2.edgedec -p 0 -m 0 -n 96 --texts 8

      edgedec bench smollm2.edgedec --save results/ --label "Pi 5, 8 GB"

      edgedec bench smollm2.edgedec --prompts prompts.jsonl --methods plain,auto,lookup

      edgedec bench smollm2.edgedec --ttft 512,2048 --text book.txt

      edgedec bench smollm2.edgedec --typing notes.txt --typing-methods plain,auto

      edgedec bench coder.edgedec --edits my-repository --edit-methods plain,lookup,auto

      edgedec bench smollm2.edgedec --typing notes.txt --against llama.cpp --model SmolLM2.gguf
    """
    is_with_prompts = bool(prompts.prompts)
    passes, prompts = _shared_tokens(passes, prompts)
    _check_options(passes, prompts, first, keys, replay)
    plan = planning.plan(3 if is_with_prompts else 5)
    printing = Printing(output, plot, planning.allow_noise, Recorder(saving))
    if replay.edits is not None:
        _refuse({**_peers(peers), **_repeats(planning)}, "edits")
        _refuse({"--save": saving.save, "--plot": plot}, "edits")
        bench_edits(bundle, replay, plan, printing)
    elif keys.typing is not None:
        _refuse(_repeats(planning), "typing")
        bench_typing(bundle, keys, plan, only_keeping(peers.rivals()), printing)
    elif first.ttft is not None:
        _refuse({**_peers(peers), "--plot": plot}, "ttft")
        bench_ttft(bundle, first, plan, printing)
    elif is_with_prompts:
        bench_prompts(bundle, prompts, plan, peers.rivals(), printing)
    else:
        bench_passes(bundle, passes, plan, only_plain(peers.rivals()), printing)


def _shared_tokens(
    passes: PassOptions, prompts: PromptOptions
) -> tuple[PassOptions, PromptOptions]:
    """Returns the options with -n where it belongs: with --prompts it is one number of tokens."""
    new_tokens = passes.new_tokens
    if not prompts.prompts or new_tokens is None or prompts.max_new_tokens is not None:
        return passes, prompts
    if not new_tokens.isdecimal() or int(new_tokens) < 2:
        raise ConfigError(f"-n is {new_tokens}, expected one number of at least 2 with --prompts")
    return replace(passes, new_tokens=None), replace(prompts, max_new_tokens=int(new_tokens))


def _check_options(
    passes: PassOptions,
    prompts: PromptOptions,
    first: TtftOptions,
    keys: TypingOptions,
    replay: EditsOptions,
) -> None:
    """Raises a ConfigError if an option was given that another measurement has."""
    is_chosen = {
        "edits": replay.edits is not None,
        "typing": keys.typing is not None,
        "ttft": first.ttft is not None,
        "prompts": bool(prompts.prompts),
    }
    chosen = next((name for name, is_asked in is_chosen.items() if is_asked), None)
    groups: dict[str | None, _Options] = {
        "edits": replay,
        "typing": keys,
        "ttft": first,
        "prompts": prompts,
        None: passes,
    }
    needs = {
        "edits": "--edits PATH",
        "typing": "--typing FILE",
        "ttft": "--ttft N,..",
        "prompts": "--prompts FILE.jsonl",
    }
    for name, group in groups.items():
        if name != chosen:
            alone = f"cannot be combined with --{chosen}"
            _check_unused(group, alone if chosen is not None else f"needs {needs[str(name)]}")


def _check_unused(unused: _Options, reason: str) -> None:
    for field in fields(unused):
        if getattr(unused, field.name) != field.default:
            raise ConfigError(f"--{field.name.replace('_', '-')} {reason}")


def _peers(peers: PeerOptions) -> dict[str, object]:
    """Returns the options of peers by name."""
    return {f"--{f.name.replace('_', '-')}": getattr(peers, f.name) for f in fields(peers)}


def _repeats(planning: PlanOptions) -> dict[str, object]:
    """Returns the options of repetitions by name, None where not given."""
    return {
        "--repetitions": planning.repetitions,
        "--allow-noise": planning.allow_noise or None,
    }


def _refuse(options: Mapping[str, object], measurement: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"{name} cannot be combined with --{measurement}: leave it out")


def bench_passes(
    bundle: Path, passes: PassOptions, plan: Plan, rivals: Rivals, printing: Printing
) -> None:
    """Measures passes and prints what was found."""
    tests = make_tests(*passes.counts())
    draw = find_plotter("bench.plot", printing.plot)
    manifest = read_manifest(bundle)
    manifest.check_writes()
    outcome = run_bench(bundle, manifest, tests, plan, rivals)
    if outcome.measurement.noisy() and not printing.allow_noise:
        raise EdgedecError(refusal(outcome.measurement))
    document = make_document(outcome)
    write_out(render(document, printing.output.value))
    printing.recorder.save(bundle, manifest, measured_passes(outcome))
    if draw is not None and printing.plot is not None:
        draw(document, printing.plot, read_work(manifest.target))
        note(f"drew {printing.plot}")


def run_bench(
    bundle: Path, manifest: BundleManifest, tests: list[Test], plan: Plan, rivals: Rivals
) -> Outcome:
    """Returns what was measured, of edgedec and of every peer that could be started."""
    entry = manifest.target
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
        bars.report("load", 0, 1 + len(rivals.modes))
        own_spec = {
            **spec, "path": str(bundle), "provider": plan.provider, "device": plan.device,
        }  # fmt: skip
        ours = stack.enter_context(Worker(EDGEDEC, sys.executable, own_spec))
        workers = [ours]
        for i, runtime in enumerate(rivals.runtimes):
            bars.report("load", 1 + i, 1 + len(rivals.modes))
            workers += map(stack.enter_context, rivals.start(runtime, spec, missing))
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
