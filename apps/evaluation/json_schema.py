"""Task `json_schema`: JSON that follows a schema, judged by the library jsonschema.

The grammar that the schema is compiled to holds the answer. Of each schema it counts whether it
compiles, whether the answer is valid, and the time that the grammar takes for a token: the answer's
tokens pass through its mask again, alone.

Source: JSONSchemaBench (arXiv:2501.10868) for the data and for coverage and validity.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import numpy as np

from edgedec.apps.evaluation.problem_answers import Answers
from edgedec.apps.evaluation.samples import Sample, Setting
from edgedec.apps.evaluation.tasks import Judgement, Problem, encode_question
from edgedec.models.errors import ConfigError, PromptTooLongError, RefusedGrammarError
from edgedec.models.installation import install_command
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.sampling.grammar import Grammars
from edgedec.runtime.sampling.sampling import History, edit, greedy

_QUESTION = "Write a JSON value that follows this schema, and nothing else.\n{schema}"
_RAW = "A JSON schema:\n{schema}\nA JSON value that follows it:\n"

Judge = Callable[[str, Any], str | None]
"""From a schema and a value to why the value does not follow it; None if it does."""


class JsonSchema:
    """is_chat: the schema goes into the chat template."""

    keys = ("json_schema",)

    def __init__(self, is_chat: bool, most_tokens: int) -> None:
        """most_tokens: of a prompt; a schema that needs more is left out of its prompt."""
        self._is_chat = is_chat
        self._most_tokens = most_tokens
        self._judge = find_judge()

    def encode(self, engine: Engine, problem: Problem) -> list[int]:
        """Returns the token ids that ask for a value."""
        try:
            ids = self._prompt_of(engine, problem["json_schema"].strip())
        except PromptTooLongError:
            ids = None
        if ids is None or len(ids) > self._most_tokens:
            return self._prompt_of(engine, "(too long)")
        return ids

    def _prompt_of(self, engine: Engine, schema: str) -> list[int]:
        if self._is_chat:
            return encode_question(engine, _QUESTION.format(schema=schema))
        return engine.encode(_RAW.format(schema=schema))

    def request(self, engine: Engine, problem: Problem, base: GenerationConfig) -> GenerationConfig:
        """Returns ``base`` with the schema."""
        return replace(base, json_schema=problem["json_schema"])

    def judge(self, problem: Problem, text: str) -> Judgement:
        """Returns whether ``text`` is JSON that follows the schema."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            return Judgement({"compiled": 1.0, "valid": 0.0}, text, f"not JSON: {error}")
        reason = self._judge(problem["json_schema"], value)
        return Judgement({"compiled": 1.0, "valid": float(reason is None)}, text, reason)


@dataclass
class SchemaAnswers(Answers):
    """Has schemas followed; one that is refused counts, and the others go on."""

    _grammars: Grammars | None = None
    _lock: Lock = field(default_factory=Lock)  # grammars are measured one at a time

    def take(self, setting: Setting, index: int) -> Sample:
        """Returns how a schema was followed, and what its grammar took."""
        started_s = time.perf_counter()
        try:
            sample = super().take(setting, index)
        except RefusedGrammarError as error:
            return Sample(
                fingerprint=setting.fingerprint,
                name=self.problems[index].name,
                metrics={"compiled": 0.0, "valid": 0.0},
                reason=str(error),
                seconds=time.perf_counter() - started_s,
            )
        engine = self.engines.of(setting)
        request = self.task.request(engine, self.problems[index], setting.request)
        tokens = engine.tokenizer.encode(sample.answer)
        with self._lock:
            times = self._times(engine, request, tokens)
        return replace(sample, metrics={**sample.metrics, **times})

    def _times(
        self, engine: Engine, request: GenerationConfig, tokens: list[int]
    ) -> dict[str, float]:
        """Returns what a grammar takes to compile, and for a token, edited logits included."""
        if self._grammars is None:
            self._grammars = Grammars(engine.tokenizer, engine.model.vocab_size)
            self._grammars.mask(replace(request, json_schema="true"), frozenset())
        logits = np.zeros(engine.model.vocab_size, np.float32)
        config, history = SamplingConfig(), History()
        started_s = time.perf_counter()
        mask = self._grammars.mask(request, frozenset(engine.stop_token_ids))
        assert mask is not None
        mask.begin(())
        compiled_s = time.perf_counter()
        n_taken = 0
        for token in tokens:
            allowed = mask.row_after(())
            if allowed is None or not allowed[token]:  # what was cut off in the middle of a letter
                break
            greedy(edit(logits, config, history, allowed))
            mask.accept(token)
            n_taken += 1
        taken_ms = (time.perf_counter() - compiled_s) * 1000
        return {
            "compile_ms": (compiled_s - started_s) * 1000,
            "grammar_ms": taken_ms / max(1, n_taken),
        }


def find_judge() -> Judge:
    """Returns what judges values.

    Raises:
        ConfigError: The library is missing.
    """
    try:
        from edgedec.apps.evaluation.schema_judge import judge
    except ImportError:
        raise ConfigError(
            f"the task json_schema needs the package jsonschema: {install_command('eval')}"
        ) from None
    return judge
