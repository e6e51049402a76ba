"""Task `compressed`: what fewer bits or weights cost, by what is asked.

A problem has its `dimension`:

- `knowledge` and `retrieval`: the model finds one of `choices` likeliest after the prompt, and
  `answer` is right. What is retrieved stands in the prompt. How far its mean probability is above
  the share of right choices is the overconfidence.
- `bias`: the same, but `answer` is the stereotype, and none of the choices is right.
- `instruction`: the model answers, and the regular expression `answer` matches the whole text.

Sources: LLM-KICK (arXiv:2310.01382) and Decoding Compressed Trust (arXiv:2403.15447) for what
perplexity does not show. The questions that come with the program are our own.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgedec.apps.evaluation.problem_answers import Answers
from edgedec.apps.evaluation.samples import Sample, Setting
from edgedec.apps.evaluation.tasks import Judgement, Problem, encode_question
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine

QUESTIONS = Path(__file__).with_name("compressed.jsonl")
"""What is asked if nobody names a file."""

DIMENSIONS = ("knowledge", "retrieval", "instruction", "bias")
_INSTRUCTION = "instruction"
_STOP_OF_RAW = "\n\n"


class Compressed:
    """is_chat: instructions go into the chat template; what has choices is always continued."""

    keys = ("dimension", "prompt", "answer")

    def __init__(self, is_chat: bool) -> None:
        self._is_chat = is_chat

    def encode(self, engine: Engine, problem: Problem) -> list[int]:
        """Returns the token ids of a prompt; a ConfigError if the problem cannot be judged."""
        dimension, answer = problem["dimension"], problem["answer"]
        if dimension not in DIMENSIONS:
            expected = ", ".join(DIMENSIONS)
            raise ConfigError(f"{problem.place}: dimension is {dimension!r}, expected {expected}")
        if dimension != _INSTRUCTION:
            if answer not in choices(problem):
                raise ConfigError(f"{problem.place}: answer {answer!r} is none of its choices")
            return engine.encode(problem["prompt"])
        try:
            re.compile(answer)
        except re.error as error:
            raise ConfigError(
                f"{problem.place}: answer is no regular expression: {error}"
            ) from None
        if self._is_chat:
            return encode_question(engine, problem["prompt"])
        return engine.encode(f"{problem['prompt']}\n")

    def request(self, engine: Engine, problem: Problem, base: GenerationConfig) -> GenerationConfig:
        """Returns ``base``, which without a chat template ends at an empty line."""
        return base if self._is_chat else replace(base, stop=(*base.stop, _STOP_OF_RAW))

    def judge(self, problem: Problem, text: str) -> Judgement:
        """Returns whether the answer to an instruction follows it."""
        is_right = re.fullmatch(problem["answer"], text) is not None
        metrics = {"right": float(is_right), _INSTRUCTION: float(is_right)}
        return Judgement(metrics, text, None if is_right else f"got {text[:60]!r}")


def choices(problem: Problem) -> list[str]:
    """Returns the texts among which a problem has a model choose."""
    return [choice.strip() for choice in problem.fields.get("choices", "").split(",")]


class CompressedAnswers(Answers):
    """Has instructions answered, and scores choices."""

    def take(self, setting: Setting, index: int) -> Sample:
        """Returns what the model wrote, or chose."""
        problem = self.problems[index]
        if problem["dimension"] == _INSTRUCTION:
            return super().take(setting, index)
        engine, prompt = self.engines.of(setting), self.prompts[index]
        options = choices(problem)
        ids = [engine.tokenizer.encode(f" {option}") for option in options]
        started_s = time.perf_counter()
        nats = np.array(engine.score_continuations(prompt, ids))
        seconds = time.perf_counter() - started_s
        shares = np.exp(nats - nats.max())
        chosen = int(nats.argmax())
        return Sample(
            fingerprint=setting.fingerprint,
            name=problem.name,
            metrics=_metrics(problem, options[chosen], float(shares[chosen] / shares.sum())),
            answer=options[chosen],
            reason=None if options[chosen] == problem["answer"] else f"chose {options[chosen]}",
            seconds=seconds,
            n_prompt_tokens=len(prompt),
        )


def _metrics(problem: Problem, chosen: str, probability: float) -> dict[str, float]:
    is_answer = float(chosen == problem["answer"])
    if problem["dimension"] == "bias":
        return {"stereotype": is_answer}
    return {
        "right": is_answer,
        problem["dimension"]: is_answer,
        "overconfidence": probability - is_answer,
    }
