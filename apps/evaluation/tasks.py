"""What a task of `edgedec eval` is, and how its problems are read."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from edgedec.apps.options.text_files import stated_text
from edgedec.models.errors import ConfigError
from edgedec.models.json_lines import json_values
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine


@dataclass(frozen=True)
class Metric:
    """A number that says how good outputs are.

    key: under which samples keep their values. of: from the mean of these to what is reported.
    """

    name: str
    key: str
    of: Callable[[Any], Any] = field(default=lambda mean: mean)
    is_lower_better: bool = False
    is_share: bool = True


METRICS: dict[str, tuple[Metric, ...]] = {
    "human_eval": (Metric("pass@1", "passed"),),
    "gsm8k": (Metric("exact answer", "exact"),),
    "infill": (Metric("tests pass", "passed"), Metric("exact match", "exact")),
    "json_schema": (Metric("valid", "valid"), Metric("compiled", "compiled")),
    "refusal": (Metric("refused", "refused"),),
    "compressed": (
        Metric("right", "right"),
        Metric("knowledge", "knowledge"),
        Metric("retrieval", "retrieval"),
        Metric("instruction", "instruction"),
        Metric("overconfidence", "overconfidence", is_lower_better=True),
        Metric("stereotypes", "stereotype", is_lower_better=True),
    ),
    "perplexity": (
        Metric("bits per token", "nats", lambda nats: nats / math.log(2), True, False),
        Metric("perplexity", "nats", lambda nats: math.e**nats, True, False),
    ),
}
"""Task -> its metrics; settings are compared by the first one."""


@dataclass(frozen=True)
class Problem:
    """One line of a data file. place: file and line. fields: its texts."""

    name: str
    place: str
    fields: dict[str, str]

    def __getitem__(self, key: str) -> str:
        return self.fields[key]


@dataclass(frozen=True)
class Judgement:
    """metrics: by their keys. answer: what was judged. reason: why it failed, None if it passed."""

    metrics: dict[str, float]
    answer: str
    reason: str | None = None


class Task(Protocol):
    """Problems that a model answers with a text."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Fields every problem has."""

    def encode(self, engine: Engine, problem: Problem) -> list[int]:
        """Returns the token ids of a problem's prompt."""

    def request(self, engine: Engine, problem: Problem, base: GenerationConfig) -> GenerationConfig:
        """Returns ``base`` with what ends an answer to the problem."""

    def judge(self, problem: Problem, text: str) -> Judgement:
        """Returns how good the answer ``text`` is."""


def read_problems(path: Path, keys: Sequence[str], limit: int | None = None) -> list[Problem]:
    """Returns the problems of a file, the first ``limit`` of them, after checking all.

    Raises:
        ConfigError: The file cannot be read, or a line of it is broken.
    """
    expected = f"an object with the texts {', '.join(keys)}"
    problems: list[Problem] = []
    for place, fields in read_objects(path, expected):
        for key in keys:
            if not isinstance(fields.get(key), str):
                got = f"{key} is {fields.get(key)!r}"
                raise ConfigError(
                    f"{place}: {benchmark_of(fields) or f'{got}, expected {expected}'}"
                )
        texts = {key: value for key, value in fields.items() if isinstance(value, str)}
        name = fields.get("task_id", fields.get("unique_id", place))
        problems.append(Problem(str(name), place, texts))
    check_names(problems)
    return problems[:limit]


def read_objects(path: Path, expected: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns the JSON objects of a file, one a line or in one list, each with its place.

    expected: what a line should be, for messages.

    Raises:
        ConfigError: The file cannot be read, a line is no object, or there is none.
    """
    objects: list[tuple[str, dict[str, Any]]] = []
    for place, fields in json_values(stated_text(path), path.name, expected):
        if not isinstance(fields, dict):
            raise ConfigError(f"{place}: got {type(fields).__name__}, expected {expected}")
        objects.append((place, fields))
    if not objects:
        raise ConfigError(f"{path}: no problems, expected one JSON object per line")
    return objects


_OTHER_BENCHMARKS = {
    "arc_easy": ("question", "choices", "answerKey"),
    "boolq": ("question", "passage", "answer"),
    "copa": ("premise", "choice1", "choice2"),
    "crows_pairs_english": ("sent_more", "sent_less"),
    "gpqa_main_zeroshot": ("Question", "Correct Answer"),
    "hellaswag": ("ctx", "endings", "label"),
    "logiqa": ("context", "query", "options"),
    "mbpp": ("text", "code", "test_list"),
    "hendrycks_math": ("problem", "level", "solution"),
    "mmlu_pro": ("question", "options", "answer_index"),
    "mmlu": ("question", "choices", "answer"),
    "openbookqa": ("question_stem", "choices"),
    "piqa": ("goal", "sol1", "sol2"),
    "race": ("article", "question", "options"),
    "truthfulqa_mc1": ("question", "mc1_targets"),
    "winogrande": ("sentence", "option1", "option2"),
}
"""Tasks of lm-evaluation-harness -> keys of their data."""


def benchmark_of(fields: Mapping[str, Any]) -> str | None:
    """Returns a sentence that names the benchmark whose keys ``fields`` has, None if unknown."""
    for name, keys in _OTHER_BENCHMARKS.items():
        if all(key in fields for key in keys):
            return (
                f"this is a line of {name}: run python -m edgedec.apps.evaluation.harness "
                f"--model edgedec --model_args bundle=BUNDLE --tasks {name}"
            )
    return None


class Named(Protocol):
    """A problem of any kind."""

    @property
    def name(self) -> str:
        """What samples call it."""

    @property
    def place(self) -> str:
        """File and line."""


def check_names(problems: Sequence[Named]) -> None:
    """Raises a ConfigError if two problems have the same name, as their samples would have."""
    names: dict[str, str] = {}
    for problem in problems:
        if problem.name in names:
            raise ConfigError(
                f"{problem.place}: task_id {problem.name!r} is that of {names[problem.name]}, "
                "expected each once"
            )
        names[problem.name] = problem.place


def file_sha256(path: Path) -> str:
    """Returns the hash of a data file that was read before."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def encode_question(engine: Engine, question: str, answer_start: str = "") -> list[int]:
    """Returns the ids of a chat in which the model is asked and has begun its answer."""
    ids = engine.encode([{"role": "user", "content": question}])
    return ids + engine.tokenizer.encode(answer_start)
