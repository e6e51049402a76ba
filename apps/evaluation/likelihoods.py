"""Has a model judge choices by their likelihood; what its choices say of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.apps.evaluation.choices import ChoiceProblem, EncodedProblem
from edgedec.apps.evaluation.samples import Sample, Setting
from edgedec.apps.evaluation.work import OneAtATime


@dataclass
class Likelihoods(OneAtATime):
    """Has the choices of problems judged. encoded: problem by problem."""

    WHY = "choices share passes already"

    problems: Sequence[ChoiceProblem]
    encoded: Sequence[EncodedProblem]

    @property
    def names(self) -> Sequence[str]:
        """Names of the problems."""
        return [problem.name for problem in self.problems]

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
