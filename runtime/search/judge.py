"""The model asked whether each try is right."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.generation import MAX_LOGPROBS
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.search.best_of import BestChoice, log_likelihood
from edgedec.runtime.text.tokenizer import Codec

_QUESTION = """\
Question:
{question}

Proposed answer:
{answer}

Is the proposed answer right? Reply with yes or no only."""


class _Host(Protocol):
    @property
    def tokenizer(self) -> Codec:
        """The model's tokenizer."""

    def generate_many(
        self, prompts: Sequence[Any], config: GenerationConfig
    ) -> list[GenerationResult]:
        """Returns the outputs of prompts."""


class Judge:
    """Chooses the try that the model itself says yes to most surely; of equals the likelier one.

    Each try is shown with the question in a chat of its own, all side by side.
    """

    def __init__(self, engine: _Host, question: str) -> None:
        self._engine = engine
        self._question = question

    def choose(self, tries: Sequence[GenerationResult]) -> BestChoice:
        """Returns the best of at least one try."""
        prompts = [
            [{"role": "user", "content": _QUESTION.format(question=self._question, answer=t.text)}]
            for t in tries
        ]
        config = GenerationConfig(max_new_tokens=1, logprobs=MAX_LOGPROBS, method="plain")
        verdicts = self._engine.generate_many(prompts, config)
        scores = tuple(yes_share(verdict, self._engine.tokenizer.decode) for verdict in verdicts)
        ranked = [
            (score, log_likelihood(result)) for score, result in zip(scores, tries, strict=True)
        ]
        return BestChoice(ranked.index(max(ranked)), scores)


def yes_share(verdict: GenerationResult, decode: Callable[[list[int]], str]) -> float:
    """Returns the probability of yes among yes and no at the first token; 0.5 if it has neither."""
    shares = {"yes": 0.0, "no": 0.0}
    for token, logprob in verdict.logprobs[0].top:
        word = decode([token]).strip().casefold()
        if word in shares:
            shares[word] += math.exp(logprob)
    total = shares["yes"] + shares["no"]
    return shares["yes"] / total if total else 0.5
