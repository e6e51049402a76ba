"""Questions with several answers. The model picks the likeliest.

The forms are those that benchmarks are published in, recognised by their keys. Prompts, and what a
choice's likelihood is, are those of lm-evaluation-harness, so that scores can be compared.

Sources: MMLU (arXiv:2009.03300), ARC (arXiv:1803.05457), HellaSwag (arXiv:1905.07830), CrowS-Pairs
(arXiv:2010.00133); EleutherAI/lm-evaluation-harness, ``lm_eval/tasks`` and ``docs/new_task_guide``
(MIT).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgedec.apps.evaluation.tasks import benchmark_of, check_names, read_objects
from edgedec.apps.options.text_files import stated_text
from edgedec.models.errors import ConfigError
from edgedec.models.fields import shown
from edgedec.runtime.engine.engine import Engine

_LETTERS = "ABCDEFGHIJ"
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_EXPECTED = (
    "the keys of MMLU (question, choices, answer), ARC (question, choices, answerKey), "
    "HellaSwag (ctx, endings, label) or CrowS-Pairs (sent_more, sent_less)"
)


@dataclass(frozen=True)
class ChoiceProblem:
    """A question and its choices.

    prompt: what they follow, empty for whole sentences. choices: their texts, without the space
    before them. labels: what reports call them. right: index of the right one.
    heading: stands before all prompts of its kind. space: stands before a choice.
    """

    name: str
    place: str
    prompt: str
    choices: tuple[str, ...]
    labels: tuple[str, ...]
    right: int
    heading: str = ""
    space: str = " "

    @property
    def is_pair(self) -> bool:
        """Two sentences. Neither is right."""
        return not self.prompt

    @property
    def solved(self) -> str:
        """The prompt with its right answer, as an example for other problems."""
        return f"{self.prompt}{self.space}{self.choices[self.right]}\n\n"


def read_choices(path: Path, limit: int | None = None) -> list[ChoiceProblem]:
    """Returns the problems of a file, the first ``limit`` of them, after checking all.

    Raises:
        ConfigError: The file cannot be read, or a line of it is broken.
    """
    delimiter = _DELIMITERS.get(path.suffix.lower())
    rows = _table_rows(path, delimiter) if delimiter else read_objects(path, _EXPECTED)
    problems = [_problem(fields, place) for place, fields in rows]
    check_names(problems)
    return problems[:limit]


def _table_rows(path: Path, delimiter: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns rows of a table with a header, or of MMLU's own files, which have none.

    MMLU's rows are question, choices and the right letter, and the file's name begins with the
    subject.
    """
    try:
        text = io.StringIO(stated_text(path), newline="")
        table = list(csv.reader(text, strict=True, delimiter=delimiter))
    except csv.Error as error:
        raise ConfigError(f"{path.name}: not valid CSV ({error}), expected {_EXPECTED}") from None
    rows = [(f"{path.name}, row {i + 1}", row) for i, row in enumerate(table) if row]
    if not rows:
        raise ConfigError(f"{path}: no problems, expected one row for each")
    keys = rows[0][1]
    _check_widths(rows)
    if "sent_more" in keys or {"answer", "target"} & set(map(str.lower, keys)):
        return [(place, dict(zip(keys, row, strict=True))) for place, row in rows[1:]]
    subject = re.sub(r"_(test|dev|val)$", "", path.stem)
    return [
        (place, {"question": row[0], "choices": row[1:-1], "answer": row[-1], "subject": subject})
        for place, row in rows
    ]


def _check_widths(rows: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Refuses rows that are cut at other places than the first one."""
    n = len(rows[0][1])
    for place, row in rows:
        if len(row) != n or n == 1:
            raise ConfigError(
                f"{place}: got {len(row)} cells, expected {n if n > 1 else 'several'} as in row 1: "
                "separate them by commas (.csv) or tabs (.tsv), and put one that holds a separator "
                "into double quotes"
            )


def _problem(fields: dict[str, Any], place: str) -> ChoiceProblem:
    is_other = benchmark_of(fields) is not None
    for is_form, make in _FORMS:
        if is_form(fields) and not is_other:
            try:
                return make(fields, place)
            except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
                raise ConfigError(f"{place}: {_said(error)}, expected {_EXPECTED}") from None
    keys = ", ".join(sorted(fields))[:80] or "of an empty object"
    raise ConfigError(
        f"{place}: {benchmark_of(fields) or f'got the keys {keys}'}, expected {_EXPECTED}"
    )


def _said(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _mmlu(fields: Mapping[str, Any], place: str) -> ChoiceProblem:
    choices = _texts(fields["choices"], may_be_empty=True)
    letters = tuple(_LETTERS[: len(choices)])
    lines = [f"{letter}. {choice}" for letter, choice in zip(letters, choices, strict=True)]
    subject = str(fields.get("subject", "")).replace("_", " ").strip()
    about = f" about {subject}" if subject else ""
    return ChoiceProblem(
        name=_name(fields, place),
        place=place,
        prompt="\n".join([_text(fields["question"]).strip(), *lines, "Answer:"]),
        choices=letters,
        labels=letters,
        right=_right(fields["answer"], letters),
        heading=f"The following are multiple choice questions (with answers){about}.\n\n",
    )


def _lettered(fields: Mapping[str, Any], place: str) -> ChoiceProblem:
    """Returns a problem whose choices have a key each: A, B and so on."""
    values = {key.lower(): value for key, value in fields.items()}
    choices = [values[letter] for letter in _LETTERS.lower() if letter in values]
    while choices and choices[-1] in ("", None):  # a question with fewer choices than others
        choices.pop()
    question = next((values[key] for key in ("question", "input", "prompt") if key in values), None)
    answer = values.get("answer", values.get("target"))
    subject = values.get("subject") or ""
    row = {"question": question, "choices": choices, "answer": answer, "subject": subject}
    return _mmlu({**fields, **row}, place)


def _arc(fields: Mapping[str, Any], place: str) -> ChoiceProblem:
    question, choices = fields["question"], fields.get("choices")
    if isinstance(question, Mapping):  # as the publisher's own files have it
        choices = {
            key: [choice[key] for choice in question["choices"]] for key in ("text", "label")
        }
        question = question["stem"]
    if not isinstance(choices, Mapping):
        raise TypeError(f"got the choices {shown(choices)}, expected an object with text and label")
    labels = _texts(choices["label"])
    return ChoiceProblem(
        name=_name(fields, place),
        place=place,
        prompt=f"Question: {_text(question)}\nAnswer:",
        choices=_texts(choices["text"]),
        labels=labels,
        right=_right(fields["answerKey"], labels),
    )


def _hellaswag(fields: Mapping[str, Any], place: str) -> ChoiceProblem:
    ctx = fields["ctx"]
    if "ctx_a" in fields and "ctx_b" in fields:
        ctx = f"{fields['ctx_a']} {str(fields['ctx_b']).capitalize()}"
    label = fields.get("activity_label")
    prompt = _text(ctx) if label is None else f"{_text(label)}: {_text(ctx)}"
    choices = tuple(_without_marks(text) for text in _texts(fields["endings"]))
    labels = tuple(str(i) for i in range(len(choices)))
    return ChoiceProblem(
        name=_name(fields, place),
        place=place,
        prompt=_without_marks(prompt),
        choices=choices,
        labels=labels,
        right=_right(fields["label"], labels),
    )


def _crows_pairs(fields: Mapping[str, Any], place: str) -> ChoiceProblem:
    return ChoiceProblem(
        name=_name(fields, place),
        place=place,
        prompt="",
        choices=(_text(fields["sent_more"]), _text(fields["sent_less"])),
        labels=("more", "less"),
        right=0,
        space="",
    )


_FORMS: tuple[
    tuple[Callable[[Mapping[str, Any]], bool], Callable[[Mapping[str, Any], str], ChoiceProblem]],
    ...,
] = (
    (lambda fields: "sent_more" in fields, _crows_pairs),
    (lambda fields: "endings" in fields, _hellaswag),
    (lambda fields: "answerKey" in fields, _arc),
    (lambda fields: "choices" in fields and "answer" in fields, _mmlu),
    (lambda fields: {"a", "b"} <= set(map(str.lower, fields)), _lettered),
)


def _name(fields: Mapping[str, Any], place: str) -> str:
    keys = ("id", "task_id", "ind")
    return next((str(fields[key]) for key in keys if fields.get(key) is not None), place)


def _text(value: Any, may_be_empty: bool = False) -> str:
    if not isinstance(value, str) or not (value.strip() or may_be_empty):
        raise ValueError(f"got {shown(value)} in place of text")
    return value


def _texts(values: Any, may_be_empty: bool = False) -> tuple[str, ...]:
    if not isinstance(values, list) or not 2 <= len(values) <= len(_LETTERS):
        raise ValueError(
            f"got the choices {shown(values)}, expected a list of 2 to {len(_LETTERS)}"
        )
    return tuple(_text(value, may_be_empty) for value in values)


def _right(answer: Any, labels: Sequence[str]) -> int:
    """Returns the index of the right choice, given as one of ``labels`` or as the index itself."""
    if str(answer).strip() in labels:
        return list(labels).index(str(answer).strip())
    is_index = isinstance(answer, int) and not isinstance(answer, bool)
    if not (is_index and 0 <= answer < len(labels)):
        raise ValueError(f"the right answer is {shown(answer)}, of {', '.join(labels)}")
    return int(answer)


def _without_marks(text: str) -> str:
    """Returns a text of HellaSwag without what is left of the pages that it is from."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


@dataclass(frozen=True)
class EncodedProblem:
    """prompt: token ids. ends: those of the choices."""

    prompt: list[int]
    ends: list[list[int]]


def encode_choices(
    engine: Engine,
    problem: ChoiceProblem,
    opening: Sequence[int],
    examples: Sequence[ChoiceProblem] = (),
) -> EncodedProblem:
    """Returns the ids of a problem, with its choices as they are spelt behind the prompt.

    opening: what whole sentences follow. examples: solved problems that come before it, those of
    its own heading.
    """
    solved = [example.solved for example in examples if example.heading == problem.heading]
    prompt = f"{problem.heading}{''.join(solved)}{problem.prompt}"
    if not prompt:
        encode = engine.tokenizer.encode
        return EncodedProblem(list(opening), [encode(text) for text in problem.choices])
    ids = engine.encode(prompt)
    wholes = [engine.encode(f"{prompt}{problem.space}{choice}") for choice in problem.choices]
    # A token may hold the prompt's end and a choice's beginning: it counts as the choice's.
    n_shared = min(_n_shared(ids, whole) for whole in wholes)
    shared = ids[:n_shared] or list(opening)
    return EncodedProblem(shared, [whole[n_shared:] for whole in wholes])


def _n_shared(prompt: Sequence[int], whole: Sequence[int]) -> int:
    """Returns how many tokens both begin with, so that one or more of ``whole`` are left."""
    both = zip(prompt, whole[:-1], strict=False)
    return next((n for n, (a, b) in enumerate(both) if a != b), min(len(prompt), len(whole) - 1))
