r"""Task `gsm8k`: grade-school maths, judged by the final number.

The model's number is that of `edgedec.runtime.engine.answers`: the one after `####`, in `\boxed{}`,
in `<answer>` or after "answer is", and else the last one. Two numbers are equal if their values are
(18 is 18.00). The right number stands after `####` in the problem's answer.

Source: arXiv:2110.14168; the question's wording is that of the Qwen2.5 model cards.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from edgedec.apps.evaluation.tasks import Judgement, Problem, encode_question
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.search.answers import final_number, last_number

_QUESTION = """\
{question}
Please reason step by step, and put your final answer within \\boxed{{}}."""
_RAW = "Question: {question}\nAnswer:"
_NEXT_QUESTION = "\nQuestion:"


class Gsm8k:
    """is_chat: the question goes into the chat template."""

    keys = ("question", "answer")

    def __init__(self, is_chat: bool) -> None:
        self._is_chat = is_chat

    def encode(self, engine: Engine, problem: Problem) -> list[int]:
        """Returns the token ids of a question; without a right answer it is a ConfigError."""
        right_number(problem)
        question = problem["question"].strip()
        if self._is_chat:
            return encode_question(engine, _QUESTION.format(question=question))
        return engine.encode(_RAW.format(question=question))

    def request(self, engine: Engine, problem: Problem, base: GenerationConfig) -> GenerationConfig:
        """Returns ``base``, which without a chat template ends before the next question."""
        return base if self._is_chat else replace(base, stop=(*base.stop, _NEXT_QUESTION))

    def judge(self, problem: Problem, text: str) -> Judgement:
        """Returns whether the final number of ``text`` is the right one."""
        right, number = right_number(problem), final_number(text)
        if number is None:
            return Judgement({"exact": 0.0}, text, f"no number, expected {right}")
        reason = None if number == right else f"got {number}, expected {right}"
        return Judgement({"exact": float(number == right)}, text, reason)


def right_number(problem: Problem) -> Decimal:
    """Returns the number that a problem's answer ends with.

    Raises:
        ConfigError: There is none.
    """
    _, mark, rest = problem["answer"].rpartition("####")
    number = last_number(rest) if mark else None
    if number is None:
        raise ConfigError(f"{problem.place}: no number after #### in answer")
    return number
