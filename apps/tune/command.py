"""`edgedec tune`: when the target model takes over, measured here."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from edgedec.apps.console.consoles import out
from edgedec.apps.console.option import option
from edgedec.apps.console.progress import ProgressBars, count_amount
from edgedec.apps.console.terminal import note, print_json
from edgedec.apps.measuring.facts import device_facts
from edgedec.apps.options import common as options
from edgedec.apps.options.groups import takes_groups
from edgedec.apps.tune.catch_up import CatchUpCost
from edgedec.apps.tune.report import (
    PROXY,
    ThresholdChoice,
    TunedRow,
    choose,
    render,
    rows_of,
    with_tuned,
)
from edgedec.apps.tune.runs import REFERENCES, TuningJob, costs_of, record, run_for_real
from edgedec.apps.tune.state import TuneState
from edgedec.apps.tune.sweep import Expected, around, candidates, expect, frontier
from edgedec.export.manifest_change import change_manifest, check_writable
from edgedec.models.bundle_files import file_sha256
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import BundleManifest, fingerprint_of, read_manifest
from edgedec.runtime.config.switching import EAD, MARGIN
from edgedec.runtime.decoding.switching.pair import Pair, checked
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.prompt_files import FilePrompt, read_prompts
from edgedec.runtime.methods.methods import identity_of
from edgedec.runtime.sequences.session_memory import TARGET
from edgedec.system.processors import physical_cores

_RECORDING_SHARE = 0.4
"""Of the time, for traces; the rest is for real runs."""

_MIN_TOKENS = 16
_MAX_SWEPT_TOKENS = 8000


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """What is tuned, on what, for how long."""

    prompts: Annotated[
        list[Path] | None,
        option("FILE.jsonl", "Prompts like your own, one JSON object per line. Repeatable."),
    ] = None
    minutes: Annotated[float, typer.Option(min=0.01, help="Maximum time.")] = 10.0
    keep: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Minimum agreement with the target model's choices."),
    ] = 0.97
    policy: Annotated[str | None, option("NAME", "Tune only ead or margin (default: both).")] = None
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Maximum new tokens per prompt.")] = 96
    per_category: options.PerCategory = None
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--raw", help="Use the chat template, or pass prompts as they are."),
    ] = None
    parallel: Annotated[
        int | None,
        option(
            "N",
            "Write N texts at a time. They are the same; what is timed runs alone (default: "
            "the fastest number).",
            min=1,
        ),
    ] = None
    fresh: Annotated[bool, typer.Option("--fresh", help="Ignore the results of earlier runs.")] = (
        False
    )
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Do not change the bundle's defaults.")
    ] = False

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies to tune.

        Raises:
            ConfigError: There is no such policy.
        """
        if self.policy is None:
            return (EAD, MARGIN)
        if self.policy not in (EAD, MARGIN):
            raise ConfigError(f"policy is {self.policy!r}, expected {EAD} or {MARGIN}")
        return (self.policy,)


@takes_groups
def tune(
    bundle: options.Bundle,
    *,
    what: TuneOptions,
    loading: options.LoadOptions,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Find when the target model should take over from the draft model.

    Records the target model's own texts, tries settings on the recording, and runs the best ones
    beside plain decoding and lossless speculation. The fastest setting that agrees enough becomes
    `--threshold auto` of the bundle. A later run continues from this one. Ctrl-C keeps the best so
    far (exit code 130).

    Examples:

      edgedec tune qwen.edgedec --prompts prompts.jsonl

      edgedec tune qwen.edgedec --draft draft.edgedec --prompts code.jsonl --minutes 30
    """
    if not what.prompts:
        raise ConfigError("nothing to tune on: name a file of prompts with --prompts")
    if not what.dry_run:
        check_writable(bundle)
    _tune_pair(bundle, what, loading, json)


def _tune_pair(
    bundle: Path, what: TuneOptions, loading: options.LoadOptions, is_json: bool
) -> None:
    """Tunes switching between two models."""
    prompts, policies = read_prompts(what.prompts or (), None, what.per_category), what.policies
    deadline_s = time.monotonic() + 60 * what.minutes
    manifest = read_manifest(bundle)
    manifest.check_writes()
    bars = ProgressBars(count_amount, has_lines=True)
    with bars, loading.load(bundle, bars.report) as engine:
        pair = _pair(engine)
        state = _open_state(what, loading, manifest, pair.fingerprint)
        ids = _encode(engine, prompts, what)
        n_tokens, parallel = what.max_new_tokens, what.parallel
        job = TuningJob(engine, ids, n_tokens, state, deadline_s, parallel, bars.report)
        finding = _find(job, policies, what.keep, 60 * what.minutes)
    _tell(finding, is_json)
    if not what.dry_run:
        choices = finding.choices(_circumstances(loading) | {"keep": what.keep})
        _write(bundle, manifest, choices, pair.fingerprint)
    if finding.is_interrupted:
        raise typer.Exit(130)


def _write(
    bundle: Path, known: BundleManifest, choices: Sequence[ThresholdChoice], draft: str
) -> None:
    change_manifest(bundle, known, lambda manifest: with_tuned(manifest, choices, draft))
    note(f"wrote the choice into {bundle}; --threshold auto uses it from now on")


def _circumstances(loading: options.LoadOptions) -> dict[str, Any]:
    """Returns where something was found out, JSON-ready."""
    device = device_facts()
    return {
        "device": {key: device[key] for key in ("model", "architecture", "platform")},
        "threads": loading.threads or physical_cores(),
    }


@dataclass
class _Finding:
    """What tuning of a pair came to. n_rounds: how many prompts every setting ran on."""

    rows: list[TunedRow]
    chosen: list[TunedRow]
    n_rounds: int
    n_traces: int
    n_tokens: int
    catch_up: CatchUpCost | None
    is_interrupted: bool

    @property
    def catch_up_fields(self) -> dict[str, Any] | None:
        """What a switch costs, JSON-ready."""
        if self.catch_up is None:
            return None
        return {**dataclasses.asdict(self.catch_up), "of_steps": self.catch_up.of_steps}

    def choices(self, circumstances: dict[str, Any]) -> list[ThresholdChoice]:
        """Returns what was chosen, with what it rests on."""
        choices = []
        for chosen in self.chosen:
            assert chosen.expected is not None
            setting = chosen.expected.setting
            rows = [
                row.to_dict()
                for row in self.rows
                if row.expected is None or row.expected.setting.policy == setting.policy
            ]
            evidence = {
                **circumstances,
                "measure": PROXY,
                "catch_up": self.catch_up_fields,
                "n_prompts_recorded": self.n_traces,
                "n_tokens_recorded": self.n_tokens,
                "n_prompts_run": self.n_rounds,
                "settings": rows,
            }
            choices.append(ThresholdChoice(setting, evidence))
        return choices


def _find(job: TuningJob, policies: Sequence[str], keep: float, seconds: float) -> _Finding:
    """Returns the best that could be found in time."""
    is_interrupted = False
    try:
        record(job, job.deadline_s - (1 - _RECORDING_SHARE) * seconds)
    except KeyboardInterrupt:
        is_interrupted = True
    n_tokens = sum(map(len, job.state.traces.values()))
    if n_tokens < _MIN_TOKENS:
        if is_interrupted:
            raise KeyboardInterrupt
        raise ConfigError(
            f"the prompts gave {n_tokens} tokens, expected at least {_MIN_TOKENS}: use more or "
            "other prompts, or give it more --minutes"
        )
    expected = _sweep(job, policies, keep)
    if not is_interrupted:
        try:
            run_for_real(job, [prediction.setting for prediction in expected])
        except KeyboardInterrupt:
            is_interrupted = True
    names = {*REFERENCES, *(str(prediction.setting) for prediction in expected)}
    rounds = job.state.complete_rounds(names)
    rows = rows_of(expected, rounds)
    chosen = [row for policy in policies if (row := choose(rows, policy, keep)) is not None]
    return _Finding(
        rows,
        chosen,
        len(rounds),
        len(job.state.traces),
        n_tokens,
        job.state.catch_up,
        is_interrupted,
    )


def _sweep(job: TuningJob, policies: Sequence[str], keep: float) -> list[Expected]:
    """Returns the settings worth a real run."""
    traces, costs = [], costs_of(job.state)
    n_tokens = 0
    for trace in job.state.traces.values():
        if n_tokens < _MAX_SWEPT_TOKENS:
            traces.append(trace)
            n_tokens += len(trace)
    expected: list[Expected] = []
    for policy in policies:
        settings = list(candidates(policy, traces))
        tried = []
        for i, setting in enumerate(settings):
            job.report(f"try {policy} on paper", i, len(settings))
            tried.append(expect(setting, traces, costs))
        expected += around(frontier(tried), keep)
    return expected


def _pair(engine: Engine) -> Pair:
    return checked(engine.draft.pair if engine.draft is not None else None)


def _open_state(
    what: TuneOptions, loading: options.LoadOptions, manifest: BundleManifest, draft: str
) -> TuneState:
    """Returns what earlier runs found of the same models, device, prompts and lengths."""
    facts = (
        fingerprint_of(manifest, TARGET),
        draft,
        loading.threads or physical_cores(),
        device_facts()["model"],
        [file_sha256(path) for path in what.prompts or ()],
        (what.max_new_tokens, what.per_category, what.chat),
    )
    state = TuneState.open(identity_of(*facts), what.fresh)
    if state.references:
        note(f"{len(state.references)} texts are known already")
    if state.traces:
        note(f"{len(state.traces)} recorded texts and {len(state.rounds)} rounds are known already")
    return state


def _encode(
    engine: Engine, prompts: Sequence[FilePrompt], what: TuneOptions
) -> dict[str, list[int]]:
    is_chat = engine.has_chat_template if what.chat is None else what.chat
    encoded = {prompt.name: prompt.encode(engine, is_chat) for prompt in prompts}
    limit = engine.context - what.max_new_tokens
    fitting = {name: ids for name, ids in encoded.items() if len(ids) <= limit}
    if len(fitting) < len(encoded):
        note(f"left out {len(encoded) - len(fitting)} prompts of more than {limit} tokens")
    return fitting


def _tell(finding: _Finding, is_json: bool) -> None:
    if is_json:
        print_json(
            {
                "measure": PROXY,
                "catch_up": finding.catch_up_fields,
                "settings": [row.to_dict() for row in finding.rows],
                "chosen": [row.name for row in finding.chosen],
                "n_prompts_recorded": finding.n_traces,
                "n_prompts_run": finding.n_rounds,
            }
        )
        return
    out.print(render(finding.rows, finding.chosen, finding.n_rounds))
    note(PROXY)
    if finding.catch_up is not None:
        note(str(finding.catch_up))
    slow = [row.name for row in finding.chosen if row.speedup is not None and row.speedup <= 1]
    if slow:
        note(f"no faster than plain decoding here: {', '.join(slow)}")
    if not finding.n_rounds:
        note("nothing was run for real yet: the choice rests on recorded texts and measured passes")
