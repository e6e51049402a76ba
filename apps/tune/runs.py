"""The two slow parts of tuning: recording traces, and running what looks best for real."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edgedec.apps.measuring.at_once import announced_n_at_once
from edgedec.apps.tune.catch_up import measure_catch_up
from edgedec.apps.tune.state import MeasuredRun, Round, TuneState
from edgedec.apps.tune.sweep import COST_SIZES, COST_SWEEPS, Costs
from edgedec.apps.tune.traces import Trace
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.config.switching import SwitchConfig
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.decoding.switching.predictions import predictions
from edgedec.runtime.engine.deadline import generate_many_until, generate_until
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.sequence import TokenSequence

PLAIN, AUTO = "plain", "auto"
DRAFT_ALONE = str(SwitchConfig(threshold=float("inf")))
"""The draft model alone."""

REFERENCES = (PLAIN, AUTO, DRAFT_ALONE)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class TuningJob:
    """What is tuned, and on what.

    prompts: by name, as token ids. deadline_s: of the monotonic clock. parallel: texts that are
    written side by side, the fastest number if None; what is timed runs alone.
    """

    engine: Engine
    prompts: dict[str, list[int]]
    n_tokens: int
    state: TuneState
    deadline_s: float
    parallel: int | None = None
    report: Progress = field(default=lambda phase, done, total: None)

    def request(self, name: str) -> GenerationConfig:
        """Returns the greedy request of a contestant: a method's name, or a switch setting."""
        is_method = name in (PLAIN, AUTO)
        return GenerationConfig(
            max_new_tokens=self.n_tokens,
            sampling=SamplingConfig(),
            method=name if is_method else None,
            switch=None if is_method else SwitchConfig.parse(name),
        )


def record(job: TuningJob, until_s: float) -> None:
    """Adds the traces that are missing, as far as time allows, and the costs of passes."""
    state, source = job.state, job.engine.draft
    assert source is not None
    missing = [name for name in job.prompts if name not in state.traces]
    if not missing and state.costs:
        return
    role = source.open()
    draft, target = role.take([]), job.engine.new_sequence()
    try:
        if not state.costs:
            job.report("measure passes", 0, 0)
            state.costs = {
                name: run_passes(CostTable.measure(sequence, COST_SIZES, COST_SWEEPS)).row_ms
                for name, sequence in (("draft", draft), ("target", target))
            }
            state.catch_up = measure_catch_up(target)
            state.save()
        costs = costs_of(state).target
        n_at_once = announced_n_at_once(job.parallel, job.engine, costs) if missing else 1
        for start in range(0, len(missing), n_at_once):
            job.report("record", len(state.traces), len(job.prompts))
            if time.monotonic() > until_s and state.traces:
                break
            _record(job, missing[start : start + n_at_once], target, draft, until_s)
    finally:
        target.close()
        role.close()


def costs_of(state: TuneState) -> Costs:
    """Returns the measured costs of passes."""
    return Costs(CostTable(dict(state.costs["draft"])), CostTable(dict(state.costs["target"])))


def run_for_real(job: TuningJob, settings: Sequence[SwitchConfig]) -> None:
    """Adds rounds: every prompt with the references and all of ``settings``, in turns.

    A round that time cuts short is dropped, so that all it compares met the same machine.
    """
    names = [*REFERENCES, *(str(setting) for setting in settings)]
    prompts = [name for name in job.prompts if name in job.state.traces]
    for i, prompt in enumerate(prompts):
        job.report("run", i, len(prompts))
        if set(names) <= job.state.rounds.get(prompt, {}).keys():
            continue
        measured = _round(job, prompt, names[i % len(names) :] + names[: i % len(names)])
        if measured is None:
            return
        job.state.rounds[prompt] = measured
        job.state.save()


def _record(
    job: TuningJob,
    names: Sequence[str],
    target: TokenSequence,
    draft: TokenSequence,
    until_s: float,
) -> None:
    """Adds the traces of some prompts, whose texts are written side by side."""
    state, prompts = job.state, [job.prompts[name] for name in names]
    request = job.request(PLAIN)
    results = generate_many_until(job.engine, prompts, request, until_s, len(prompts))
    for name, prompt, result in zip(names, prompts, results, strict=True):
        text = [*prompt, *result.token_ids]
        if len(text) > draft.context:
            raise ConfigError(
                f"{name}: prompt and output have {len(text)} tokens, the draft model's context "
                f"{draft.context}: leave it out, or export with a larger --context"
            )
        if len(result.token_ids) > 1:
            state.traces[name] = Trace.record(text, len(prompt), target, draft)
            state.save()


def _round(job: TuningJob, prompt: str, names: Sequence[str]) -> Round | None:
    """Returns the runs of all contestants on one prompt; None when time was up before."""
    ids, measured = job.prompts[prompt], Round()
    for name in names:
        result = generate_until(job.engine, ids, job.request(name), job.deadline_s)
        if time.monotonic() > job.deadline_s:
            return None
        measured[name] = _measured(job.engine, ids, result)
    return measured


def _measured(engine: Engine, prompt: Sequence[int], result: GenerationResult) -> MeasuredRun:
    tokens = result.token_ids
    text = [*prompt, *tokens]
    with engine.borrowed(text) as sequence:  # which holds most of it
        says = predictions(sequence, text, len(prompt))
    n_target = result.switch.get("n_target", len(tokens))
    return MeasuredRun(
        n_tokens=len(tokens),
        ms=result.tpot_ms * (len(tokens) - 1),
        n_target=n_target,
        n_chosen=sum(p.token == token for p, token in zip(says, tokens, strict=True)),
    )
