"""Has a model judge choices by their likelihood; what its choices say of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.apps.eval.choices import ChoiceProblem, EncodedProblem
from edgedec.apps.eval.samples import Sample, Setting
from edgedec.apps.eval.walk import Engines
from edgedec.models.errors import ConfigError


@dataclass
class Likelihoods:
    """Has the choices of problems judged. encoded: problem by problem."""

    problems: Sequence[ChoiceProblem]
    encoded: Sequence[EncodedProblem]
    engines: Engines

    @property
    def names(self) -> Sequence[str]:
        """Names of the problems."""
        return [problem.name for problem in self.problems]

    def warm_up(self, setting: Setting) -> None:
        """Opens the setting's engine."""
        self.engines.of(setting)

    def n_at_once(self, settings: Sequence[Setting], asked: int | None) -> int:
        """Returns 1: the choices of a problem share a pass already.

        Raises:
            ConfigError: Several were asked for.
        """
        if asked not in (None, 1):
            raise ConfigError("choices share passes already: leave out --parallel")
        return 1

    def stop(self) -> None:
        """Nothing is taken in other threads."""

    def take(self, setting: Setting, index: int) -> Sample:
        """Returns which choice is the likeliest, and whether it is the right one."""
        problem, encoded = self.problems[index], self.encoded[index]
        engine = self.engines.of(setting)
        started_s = time.perf_counter()
        log_probs = engine.score_continuations(encoded.prompt, encoded.ends)
        seconds = time.perf_counter() - started_s
        chosen = int(np.argmax(log_probs))
        reason = f"chose {problem.labels[chosen]}, expected {problem.labels[problem.right]}"
        return Sample(
            fingerprint=setting.fingerprint,
            name=problem.name,
            metrics=metrics_of(problem, log_probs),
            answer=problem.labels[chosen],
            reason=None if chosen == problem.right or problem.is_pair else reason,
            seconds=seconds,
            n_prompt_tokens=len(encoded.prompt) + sum(len(end) for end in encoded.ends),
        )


def metrics_of(problem: ChoiceProblem, log_probs: Sequence[float]) -> dict[str, float]:
    """Returns what the log-probabilities of a problem's choices come to.

    acc: the likeliest choice is the right one. acc_norm: so is the likeliest for its length in
    characters. confidence: probability of the likeliest one among the choices.
    """
    values = np.array(log_probs, np.float64)
    chosen = int(values.argmax())
    if problem.is_pair:
        return {"stereotype": float(chosen == problem.right)}
    by_length = values / [len(choice) for choice in problem.choices]
    return {
        "acc": float(chosen == problem.right),
        "acc_norm": float(int(by_length.argmax()) == problem.right),
        "confidence": float(1 / np.exp(values - values.max()).sum()),
    }
