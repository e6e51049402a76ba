"""Task `short_answer`: knowledge that a model has, as answers of a few words.

Lines are those of Natural Questions (open) and TriviaQA as lm-evaluation-harness has them: a
question, and one answer or several that are right. Exact: the answer without case, punctuation and
articles is one of them. Contained: one of them stands in it, as a whole.

Sources: LLM-KICK (arXiv:2310.01382) for knowledge as what compression loses first; SQuAD
(arXiv:1606.05250) for the normal form.
"""

from __future__ import annotations

import re
import string
import unicodedata
from dataclasses import replace

from edgedec.apps.evaluation.tasks import Judgement, Problem, encode_question
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine

_QUESTION = "Answer in a few words, and nothing else.\n{question}"
_RAW = "Q: {question}\nA:"
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_TYPOGRAPHIC = (
    "\u2018\u2019\u201c\u201d\u00b4\u02bc\u2010\u2011\u2012\u2013\u2014\u2026\u2044\u00ab\u00bb"
)
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation + _TYPOGRAPHIC)


class ShortAnswer:
    """is_chat: the question goes into the chat template."""

    keys = ("question", "answer")

    def __init__(self, is_chat: bool) -> None:
        self._is_chat = is_chat

    def encode(self, engine: Engine, problem: Problem) -> list[int]:
        """Returns the token ids of a question; without a right answer it is a ConfigError."""
        right_answers(problem)
        question = problem["question"].strip()
        if self._is_chat:
            return encode_question(engine, _QUESTION.format(question=question))
        return engine.encode(_RAW.format(question=question))

    def request(self, engine: Engine, problem: Problem, base: GenerationConfig) -> GenerationConfig:
        """Returns ``base``, which ends with the line."""
        return replace(base, stop=(*base.stop, "\n"))

    def judge(self, problem: Problem, text: str) -> Judgement:
        """Returns whether ``text`` is a right answer, or has one in it."""
        right, answer = right_answers(problem), normal_form(text)
        is_exact = answer in right
        is_in = any(f" {form} " in f" {answer} " for form in right)
        reason = None if is_exact else f"got {text.strip()[:60]!r}, expected {right[0]!r}"
        return Judgement({"exact": float(is_exact), "contained": float(is_in)}, text, reason)


def right_answers(problem: Problem) -> list[str]:
    """Returns the normal forms of a problem's answers, of which there is one at least."""
    forms = [normal_form(line) for line in problem["answer"].splitlines()]
    if not any(forms):
        raise ConfigError(f"{problem.place}: answer is blank, expected a text, or several")
    return [form for form in forms if form]


def normal_form(text: str) -> str:
    """Returns a text without case, punctuation, articles and white space that says nothing.

    Characters that Unicode writes in several ways are one. Articles alone, as in the name of the
    band The The, stay.
    """
    text = unicodedata.normalize("NFKC", text.translate(_NO_PUNCTUATION)).lower()
    text = text.translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split()) or " ".join(text.split())
