"""`edgedec eval`: how good a bundle's answers are, under one way to decode or several."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from edgedec.apps.console.option import option
from edgedec.apps.console.progress import ProgressBars, count_amount
from edgedec.apps.console.terminal import note, print_json, write_out
from edgedec.apps.evaluation.job import (
    EvaluationJob,
    TaskName,
    TaskOptions,
    make_job,
    make_settings,
    make_work,
)
from edgedec.apps.evaluation.report import check_comparable, make_document, render
from edgedec.apps.evaluation.results import measured_answers
from edgedec.apps.evaluation.samples import SampleFile, Samples, read_samples
from edgedec.apps.evaluation.walk import walk
from edgedec.apps.measuring.disturbance import RunWatch
from edgedec.apps.measuring.facts import build_facts, device_facts
from edgedec.apps.measuring.plotters import find_plotter
from edgedec.apps.model_names import named_bundle
from edgedec.apps.options import common as options
from edgedec.apps.options.groups import takes_groups
from edgedec.apps.options.switching import APPROXIMATE, READS_PREDICTED
from edgedec.apps.programs.contained import check_programs_run
from edgedec.apps.results.recording import Recorder, SaveOptions
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import read_manifest
from edgedec.runtime.config.generation import PREDICTED


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """Options that say where results go."""

    output: Annotated[
        Path | None,
        option(
            "FILE.jsonl",
            "Write every sample to FILE. Samples already there are reused.",
            "--output",
            "-o",
        ),
    ] = None
    compare: Annotated[
        list[Path] | None, option("FILE.jsonl", "Compare with the samples in a file. Repeatable.")
    ] = None
    plot: Annotated[
        Path | None, option("FILE.png", "Draw quality against time (extra `plots`).")
    ] = None


@takes_groups
def evaluate(
    bundle: Annotated[
        Path | None,
        typer.Argument(metavar="BUNDLE", help=options.BUNDLE_HELP, callback=named_bundle),
    ] = None,
    *,
    what: TaskOptions,
    loading: options.LoadOptions,
    request: options.RequestOptions,
    results: ResultOptions,
    saving: SaveOptions,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Measure how good answers are, and how long they take.

    Tasks: human_eval (pass@1), gsm8k (exact answer), infill (tests pass, exact match), json_schema
    (valid JSON), refusal (of your requests), perplexity (of a text, in windows) and compressed
    (what fewer bits cost, on questions of its own). Decoding is greedy unless you pass sampling
    options. The limit of new tokens depends on the task. Several settings are compared over the
    same problems. Ctrl-C keeps the results so far (exit code 130); with -o, the same command
    resumes. For other benchmarks, such as MMLU, there is `python -m
    edgedec.apps.evaluation.harness --model edgedec --model_args bundle=BUNDLE --tasks NAME` (extra
    `harness`).

    Generated programs run in a process of their own, with limits on time, memory and output. On
    Linux (x86-64 and ARM64) they cannot write, start processes, signal others or use the network.
    On other Linux machines only Python's own checks stop them. Other systems refuse to run them
    unless you pass --uncontained-programs. Programs can read the files that you can read, and one
    that tries to can forge its own verdict.

    Examples:

      edgedec eval qwen.edgedec --task human_eval --data human_eval.jsonl --methods plain,auto

      edgedec eval qwen.edgedec --task gsm8k --data gsm8k.jsonl --limit 50 -o samples.jsonl

      edgedec eval pair.edgedec --task human_eval --data human_eval.jsonl
      --frontier --settings "ead:threshold=0.5; ead:threshold=1" --plot frontier.png

      edgedec eval qwen.edgedec --task perplexity --data text.txt --window 1024 --stride 512

      edgedec eval --compare small.jsonl --compare large.jsonl --plot quality.png
    """
    draw = find_plotter("evaluation.plot", results.plot)
    if bundle is None and saving.save is not None:
        raise ConfigError("--save keeps the result of a run: add BUNDLE")
    recorder = Recorder(saving)
    others = read_others(results.compare or [])
    if bundle is None:
        document, ended_by = compare_only(others, what)
    else:
        job = make_job(bundle, what, loading, request)
        document, ended_by = run_job(job, results, others)
    if any(row["n_samples"] for row in document["settings"]):
        if json:
            print_json(document)
        else:
            write_out(render(document))
        if draw is not None and results.plot is not None:
            draw(document, results.plot)
            note(f"drew {results.plot}")
        if bundle is not None and (measured := measured_answers(document)) is not None:
            recorder.save(bundle, read_manifest(bundle), measured)
    if ended_by is not None:
        raise ended_by


Outcome = tuple[dict[str, Any], BaseException | None]
"""The document, and what ended the evaluation early, if anything did."""


def run_job(job: EvaluationJob, results: ResultOptions, others: Samples) -> Outcome:
    """Returns what an evaluation found, complete or not."""
    with ExitStack() as stack, ProgressBars(count_amount) as bars:
        held_by: tuple[str, ...] = ()
        work, how = make_work(job, stack)
        if job.task in (TaskName.HUMAN_EVAL, TaskName.INFILL):
            held_by = check_programs_run(job.limits, job.what.uncontained_programs)
            if "system-call filter" not in held_by:
                note(f"this kernel filters no system calls: programs are held by {held_by[-1]}")
        tried = make_settings(job, how)
        prints = {setting.fingerprint for setting in tried}
        settings = [*tried, *(s for key, s in others.settings.items() if key not in prints)]
        check_comparable(settings)
        file = SampleFile(results.output)
        stack.callback(file.close)
        file.begin(tried)
        if any(
            request.switch is not None and not request.switch.is_lossless
            for request in job.requests.values()
        ):
            note(APPROXIMATE)
        if any(request.prefill == PREDICTED for request in job.requests.values()):
            note(READS_PREDICTED)
        watch = RunWatch(tried[0].facts["threads"])
        ended_by = walk(work, tried, file, bars.report, job.what.parallel)
        noise = watch.noise()
    held = Samples(
        {**others.settings, **file.held.settings}, {**others.samples, **file.held.samples}
    )
    document = make_document(
        settings,
        held,
        work.names,
        {
            "is_complete": ended_by is None,
            "programs_held_by": list(held_by),
            "device": device_facts(),
            "build": build_facts(),
            "noise": noise,
        },
        job.what.frontier,
    )
    return document, ended_by


def read_others(paths: Sequence[Path]) -> Samples:
    """Returns the settings and samples of files to compare with.

    Raises:
        ConfigError: A file is broken, or has no setting.
    """
    others = Samples()
    for path in paths:
        samples = read_samples(path)
        if not samples.settings:
            raise ConfigError(f"{path} holds no samples: make them with --output")
        others.settings |= samples.settings
        others.samples |= samples.samples
    return others


def compare_only(others: Samples, what: TaskOptions) -> Outcome:
    """Returns what files of samples say, without any model."""
    if not others.settings or replace(what, frontier=False) != TaskOptions():
        raise typer.BadParameter(
            "expected BUNDLE with --task and --data, or nothing but --compare FILE.jsonl and "
            "--frontier"
        )
    settings = list(others.settings.values())
    return make_document(settings, others, None, {"is_complete": True}, what.frontier), None
