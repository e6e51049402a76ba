"""Has a model answer problems, and judges the answers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from threading import Event

from edgedec.apps.evaluation.human_eval import HumanEval
from edgedec.apps.evaluation.samples import Models, Sample, Setting
from edgedec.apps.evaluation.tasks import Problem, Task
from edgedec.apps.evaluation.tries import NEED_TESTS, Tested, Tries
from edgedec.apps.evaluation.work import Engines
from edgedec.apps.measuring.at_once import announced_n_at_once
from edgedec.apps.programs.assertions import one_by_one, public_half
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.generation import BATCH
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.engine.stream import Piece
from edgedec.runtime.search.best_of import BestOf, Iterate
from edgedec.runtime.search.planned import Planned

_WARMUP_TOKENS = 4


@dataclass
class Answers:
    """Has problems answered. prompts: token ids, problem by problem."""

    task: Task
    problems: Sequence[Problem]
    prompts: Sequence[list[int]]
    engines: Engines
    _shared: tuple[object, BestOf, float] | None = None
    _are_prompts_shared: bool = False
    _is_over: Event = field(default_factory=Event)

    @property
    def names(self) -> Sequence[str]:
        """Names of the problems."""
        return [problem.name for problem in self.problems]

    def warm_up(self, setting: Setting) -> None:
        """Answers the first problem in a few tokens."""
        engine = self.engines.of(setting)
        engine.forget_prompts()
        engine.generate(self.prompts[0], replace(setting.request, max_new_tokens=_WARMUP_TOKENS))

    def n_at_once(self, settings: Sequence[Setting], n_requested: int | None) -> int:
        """Returns how many problems are answered at a time.

        If nobody says, it is one for what compares settings, so that times are those of an answer
        alone.

        Raises:
            ConfigError: A pass holds fewer, or settings take several tries, which share passes.
        """
        if any(setting.tries for setting in settings):
            if n_requested not in (None, 1):
                raise ConfigError("several tries share passes already: leave out --parallel")
            return 1
        if n_requested is None and len(settings) > 1:
            return 1
        n_at_once = min(
            announced_n_at_once(n_requested, self.engines.of(setting)) for setting in settings
        )
        # Settings are compared on what each computes of all prompts.
        self._are_prompts_shared = n_at_once > 1 and len(settings) == 1
        return n_at_once

    def stop(self) -> None:
        """Has all answers end after their next piece."""
        self._is_over.set()

    def take(self, setting: Setting, index: int) -> Sample:
        """Returns how a problem was answered and judged; KV caches are empty before, or shared."""
        problem, engine = self.problems[index], self.engines.of(setting)
        request = self.task.request(engine, problem, setting.request)
        request = replace(request, priority=BATCH)
        if not self._are_prompts_shared:
            # Answers at the same time use nothing of each other's prompts either.
            request = replace(request, prefix_group=problem.name)
            engine.forget_prompts()
        metrics: dict[str, float] = {}
        if setting.tries is None:
            started_s = time.perf_counter()
            result = self._answered(engine, self.prompts[index], request)
            seconds = time.perf_counter() - started_s
            made: Sequence[GenerationResult] = [result]
            n_computed = result.n_new_tokens
        else:
            best, seconds = self._best_of(setting, setting.tries, index, request)
            result, made, n_computed = best.result, best.tries, best.n_computed
            if setting.tries.choose in NEED_TESTS:
                metrics["shown"] = best.choice.scores[best.choice.index]
        judgement = self.task.judge(problem, result.text)
        return Sample(
            fingerprint=setting.fingerprint,
            name=problem.name,
            metrics={**judgement.metrics, **metrics},
            answer=judgement.answer,
            reason=judgement.reason,
            finish_reason=result.finish_reason,
            seconds=seconds,
            decode_s=_decode_s(made, seconds),
            n_prompt_tokens=result.n_prompt_tokens,
            n_new_tokens=n_computed,
            lossless=result.lossless and setting.models not in (Models.DRAFT, Models.PRUNED),
            tokens_by_origin=dict(Counter(origin for result in made for origin in result.origins)),
            stats=result.stats.to_dict(),
            switch=dict(result.switch),
        )

    def _answered(
        self, engine: Engine, prompt: list[int], request: GenerationConfig
    ) -> GenerationResult:
        stream = engine.stream(prompt, request)

        def take(piece: Piece) -> None:
            if self._is_over.is_set():
                stream.stop()

        return stream.write(take)

    def _best_of(
        self, setting: Setting, tries: Tries, index: int, request: GenerationConfig
    ) -> tuple[BestOf, float]:
        """Returns the chosen try, and the seconds that all took.

        Choosers of the same tries at a problem share them, and count their time each.
        """
        engine = self.engines.of(setting)
        chooser = tries.chooser(self._tested(engine, self.problems[index]))
        started_s = time.perf_counter()
        if isinstance(chooser, Iterate | Planned):
            best = engine.best_of(self.prompts[index], tries.n, chooser, request)
            return best, time.perf_counter() - started_s
        key = (index, tries.n, request)
        if self._shared is None or self._shared[0] != key:
            made = engine.best_of(self.prompts[index], tries.n, "likelihood", request)
            self._shared = key, made, time.perf_counter() - started_s
        _, made, seconds = self._shared
        started_s = time.perf_counter()
        best = replace(made, choice=chooser.choose(made.tries))
        return best, seconds + time.perf_counter() - started_s

    def _tested(self, engine: Engine, problem: Problem) -> Tested | None:
        """Returns half of a problem's tests; None without tests."""
        task = self.task
        if not isinstance(task, HumanEval):
            return None
        half = replace(problem, fields={**problem.fields, "test": public_half(problem["test"])})
        alone = [
            replace(problem, fields={**problem.fields, "test": test})
            for test in one_by_one(half["test"])
        ]
        return Tested(
            partial(_verdict, task, half),
            partial(task.encode_again, engine, problem),
            lambda text: fmean(_verdict(task, single, text)[0] for single in alone),
        )


def _verdict(task: HumanEval, problem: Problem, text: str) -> tuple[float, str]:
    judgement = task.judge(problem, text)
    return judgement.metrics["passed"], judgement.reason or ""


def _decode_s(made: Sequence[GenerationResult], seconds: float) -> float:
    """Returns the time after the first token: of one output its own, of several the rest."""
    if len(made) == 1:
        return made[0].tpot_ms / 1000 * (made[0].n_new_tokens - 1)
    return seconds - min(result.ttft_ms for result in made) / 1000
