"""Goes through the problems, every setting in turn on each of them, and keeps the samples.

Settings that draft or switch have an engine each, so that none finds in its drafters or its draft
model what another one just wrote; they keep what they learn from problem to problem, as in use. The
KV cache of the target model is empty before every sample. The order of the settings turns around
from problem to problem.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from edgedec.apps.console.terminal import note
from edgedec.apps.eval.human_eval import HumanEval
from edgedec.apps.eval.perplexity import Window, score
from edgedec.apps.eval.samples import Models, Sample, SampleFile, Setting
from edgedec.apps.eval.tasks import Problem, Task
from edgedec.apps.eval.tries import public_half
from edgedec.models.errors import ConfigError, EdgedecError
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.methods.method_parts import PLAIN

_WARMUP_TOKENS = 4

OpenEngine = Callable[[Models], Engine]
Report = Callable[[str, int, int], None]


class Work(Protocol):
    """Samples to take."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the samples, in their order."""

    def warm_up(self, setting: Setting) -> None:
        """Loads what the setting needs; whatever is wrong with it comes to light here."""

    def take(self, setting: Setting, index: int) -> Sample:
        """Returns the sample of a problem under a setting."""


@dataclass
class Engines:
    """Engines by what may share one."""

    open: OpenEngine
    stack: ExitStack
    _opened: dict[str, Engine] = field(default_factory=dict)

    def of(self, setting: Setting) -> Engine:
        """Returns the setting's engine, opened once; plain settings of one model share theirs."""
        request = setting.request
        is_plain = request.switch is None and request.method in (None, PLAIN)
        key = str(setting.models) if is_plain else setting.label
        if key not in self._opened:
            self._opened[key] = self.stack.enter_context(self.open(setting.models))
        return self._opened[key]


@dataclass
class Answers:
    """Has problems answered. prompts: token ids, problem by problem."""

    task: Task
    problems: Sequence[Problem]
    prompts: Sequence[list[int]]
    engines: Engines

    @property
    def names(self) -> Sequence[str]:
        """Names of the problems."""
        return [problem.name for problem in self.problems]

    def warm_up(self, setting: Setting) -> None:
        """Answers the first problem in a few tokens."""
        engine = self.engines.of(setting)
        engine.forget_prompts()
        engine.generate(self.prompts[0], replace(setting.request, max_new_tokens=_WARMUP_TOKENS))

    def take(self, setting: Setting, index: int) -> Sample:
        """Returns how a problem was answered and judged, the KV cache empty before."""
        problem, engine = self.problems[index], self.engines.of(setting)
        request = self.task.request(engine, problem, setting.request)
        engine.forget_prompts()
        started_s = time.perf_counter()
        if setting.tries is None:
            result = engine.generate(self.prompts[index], request)
            made: Sequence[GenerationResult] = [result]
        else:
            chooser = setting.tries.chooser(self._passes(problem))
            found = engine.best_of(self.prompts[index], setting.tries.n, chooser, request)
            result, made = found.result, found.tries
        seconds = time.perf_counter() - started_s
        judgement = self.task.judge(problem, result.text)
        return Sample(
            fingerprint=setting.fingerprint,
            name=problem.name,
            metrics=judgement.metrics,
            answer=judgement.answer,
            reason=judgement.reason,
            finish_reason=result.finish_reason,
            seconds=seconds,
            decode_s=_decode_s(made, seconds),
            n_prompt_tokens=result.n_prompt_tokens,
            n_new_tokens=sum(one.n_new_tokens for one in made),
            lossless=result.lossless and setting.models not in (Models.DRAFT, Models.PRUNED),
            tokens_by_origin=dict(Counter(origin for one in made for origin in one.origins)),
            stats=result.stats.to_dict(),
            switch=dict(result.switch),
        )

    def _passes(self, problem: Problem) -> Callable[[str], float] | None:
        """Returns what tells whether a text passes half of the tests; None without tests."""
        if not isinstance(self.task, HumanEval):
            return None
        half = replace(problem, fields={**problem.fields, "test": public_half(problem["test"])})
        return partial(_share_passed, self.task, half)


def _share_passed(task: HumanEval, problem: Problem, text: str) -> float:
    return task.judge(problem, text).metrics["passed"]


def _decode_s(made: Sequence[GenerationResult], seconds: float) -> float:
    """Returns the time after the first token: of one output its own, of several the rest."""
    if len(made) == 1:
        return made[0].tpot_ms / 1000 * (made[0].n_new_tokens - 1)
    return seconds - min(one.ttft_ms for one in made) / 1000


@dataclass
class Predictions:
    """Has a text predicted, window by window."""

    tokens: Sequence[int]
    windows: Sequence[Window]
    opening: tuple[int, ...]
    engines: Engines

    @property
    def names(self) -> Sequence[str]:
        """Positions scored in each window, such as `256-512`."""
        return [f"{window.scored}-{window.end}" for window in self.windows]

    def warm_up(self, setting: Setting) -> None:
        """Opens the setting's engine."""
        self.engines.of(setting)

    def take(self, setting: Setting, index: int) -> Sample:
        """Returns the mean surprise at the tokens of a window. Units: nats."""
        window = self.windows[index]
        sequence = self.engines.of(setting).new_sequence()
        nats, seconds = score(sequence, self.tokens, window, self.opening)
        sequence.close()
        return Sample(
            fingerprint=setting.fingerprint,
            name=self.names[index],
            metrics={"nats": nats / window.n_scored},
            weight=window.n_scored,
            seconds=seconds,
            n_prompt_tokens=window.end - window.start,
        )


def walk(
    work: Work, settings: Sequence[Setting], file: SampleFile, report: Report
) -> BaseException | None:
    """Takes the samples that ``file`` does not hold; returns what ended it early, if anything did.

    Raises:
        ConfigError: A setting makes no sense here.
    """
    names = work.names
    missing = [
        [setting for setting in settings if (setting.fingerprint, name) not in file.held.samples]
        for name in names
    ]
    if n_held := sum(len(settings) - len(some) for some in missing):
        note(f"{n_held} of {len(names) * len(settings)} samples are there already")
    try:
        needed = [one for one in settings if any(one in some for some in missing)]
        for i, setting in enumerate(needed):
            report("warm-up", i, len(needed))
            work.warm_up(setting)
        for i, some in enumerate(missing):
            report("problem", i, len(names))
            told = []
            for setting in some if i % 2 == 0 else reversed(some):
                sample = work.take(setting, i)
                file.add(sample)
                told.append(sample_line(setting, sample))
            if told:
                note(f"[{i + 1}/{len(names)}] {names[i]}: {'; '.join(told)}")
    except ConfigError:
        raise
    except (KeyboardInterrupt, EdgedecError) as error:
        return error
    return None


def sample_line(setting: Setting, sample: Sample) -> str:
    """Returns what became of a sample, for a person who waits."""
    if "nats" in sample.metrics:
        return f"{setting.label} {sample.metrics['nats']:.3f} nats, {sample.seconds:.1f} s"
    outcome = "passed" if sample.reason is None else f"failed ({sample.reason})"
    return f"{setting.label} {outcome}, {sample.n_new_tokens} tokens, {sample.seconds:.1f} s"
