"""Reads files of prompts: one JSON object a line, in the forms benchmarks use."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgedec.models.errors import ConfigError
from edgedec.models.fields import shown
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.text.infill import FORMATS, find_infill_tokens
from edgedec.system.files import how_to_convert

_CATEGORY_KEYS = ("subtask", "category")
_NAME_KEYS = ("task_id", "question_id", "id", "name")
_FORMS = '{"prompt": ...}, {"prompt": ..., "suffix": ...}, {"turns": [...]} or {"messages": [...]}'


@dataclass(frozen=True)
class FilePrompt:
    """place: file and line. text: a prompt, or the chat messages before an answer.

    suffix: what follows the text to write between it and ``text``; None where nothing is filled in.
    prediction: see `GenerationConfig.prediction`.
    """

    name: str
    category: str
    place: str
    text: str | list[dict[str, str]]
    suffix: str | None = None
    prediction: str = ""

    def encode(self, engine: Engine, is_chat: bool) -> list[int]:
        """Returns the token ids; ``is_chat`` puts the prompt into the chat template.

        Texts to fill in go without the template.

        Raises:
            ConfigError: Messages cannot go without the template, or the model cannot fill in.
        """
        if self.suffix is not None:
            return self.encode_infill(engine, is_typing=False)
        if isinstance(self.text, list):
            if not is_chat:
                raise ConfigError(f"{self.place} has messages, which only --chat can encode")
            return engine.encode(self.text)
        messages = [{"role": "user", "content": self.text.rstrip("\n")}]
        return engine.encode(messages if is_chat else self.text)

    def encode_infill(self, engine: Engine, is_typing: bool) -> list[int]:
        """Returns the token ids that ask for what stands before the suffix.

        is_typing: in the order of `InfillTokens.typing_prompt`.

        Raises:
            ConfigError: The model cannot fill in.
        """
        marks = find_infill_tokens(engine.tokenizer)
        if marks is None or not isinstance(self.text, str):
            raise ConfigError(
                f"{self.place} has a suffix, but the model cannot fill in: its tokenizer has no "
                f"{FORMATS[0][0]} or {FORMATS[1][0]} token; use a model that was trained for that"
            )
        encode = engine.tokenizer.encode
        order = marks.typing_prompt if is_typing else marks.prompt
        return [*engine.encoder.opening, *order(encode(self.text), encode(self.suffix or ""))]


def read_prompts(
    paths: Sequence[Path], category_key: str | None = None, per_category: int | None = None
) -> list[FilePrompt]:
    """Returns the prompts of the files, in their order.

    Args:
        category_key: Field that names the category. By default `subtask`, or else `category`, or
            else the file's name.
        per_category: How many to take of each category, the first ones.

    Raises:
        ConfigError: A file or a line of it is none of these, or there is no prompt.
    """
    prompts: list[FilePrompt] = []
    n_taken: dict[str, int] = {}
    for path, label in zip(paths, labels_of(paths), strict=True):
        for prompt in _read_file(path, label, category_key):
            n = n_taken.get(prompt.category, 0)
            if per_category is None or n < per_category:
                n_taken[prompt.category] = n + 1
                prompts.append(prompt)
    if not prompts:
        raise ConfigError(f"{', '.join(map(str, paths))}: no prompts, expected {_FORMS} a line")
    names = [prompt.name for prompt in prompts]
    if len(set(names)) == len(names):
        return prompts
    return [replace(prompt, name=prompt.place) for prompt in prompts]


def labels_of(paths: Sequence[Path]) -> list[str]:
    """Returns what to call each file: its name, or its path where another has that name, too."""
    n_of = Counter(path.name for path in paths)
    return [path.name if n_of[path.name] == 1 else str(path) for path in paths]


def _read_file(path: Path, label: str, category_key: str | None) -> Iterator[FilePrompt]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise ConfigError(f"cannot read prompts from {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {how_to_convert(error)}") from None
    for i, line in enumerate(lines):
        if line.strip():
            yield _read_line(line, path, f"{label}:{i + 1}", category_key)


def _read_line(line: str, path: Path, place: str, category_key: str | None) -> FilePrompt:
    try:
        fields: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place}: not valid JSON ({error}), expected {_FORMS}") from None
    text = _text(fields) if isinstance(fields, dict) else None
    if text is None:
        raise ConfigError(f"{place}: no prompt, expected {_FORMS}")
    if category_key is not None and category_key not in fields:
        raise ConfigError(f"{place}: no field {category_key!r}, which --category-key names")
    keys = _CATEGORY_KEYS if category_key is None else (category_key,)
    return FilePrompt(
        name=_first(fields, _NAME_KEYS, place),
        category=_first(fields, keys, path.stem),
        place=place,
        text=text,
        suffix=_suffix(fields, place),
        prediction=_prediction(fields, place),
    )


def _text(fields: dict[str, Any]) -> str | list[dict[str, str]] | None:
    """Returns the prompt of an object, None if it has none that is not empty."""
    turns = fields.get("turns")
    text = turns[0] if isinstance(turns, list) and turns else fields.get("prompt")
    if isinstance(text, str) and (text.strip() or fields.get("suffix")):
        return text
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        return None
    is_whole = all(
        isinstance(message, dict)
        and all(isinstance(message.get(key), str) for key in ("role", "content"))
        for message in messages
    )
    return messages if is_whole else None


def _suffix(fields: dict[str, Any], place: str) -> str | None:
    """Returns what stands behind the text to fill in, None where a prompt has no such place."""
    suffix = fields.get("suffix")
    if suffix is None:
        return None
    if not isinstance(suffix, str) or not isinstance(fields.get("prompt"), str):
        raise ConfigError(f"{place}: a suffix is a text beside a prompt, expected {_FORMS}")
    return suffix


def _prediction(fields: dict[str, Any], place: str) -> str:
    """Returns the text that an answer is likely to repeat."""
    prediction = fields.get("prediction")
    if not isinstance(prediction, str | None):
        raise ConfigError(f"{place}: prediction is {shown(prediction)}, expected text")
    return prediction or ""


def _first(fields: dict[str, Any], keys: Sequence[str], default: str) -> str:
    return next((str(fields[key]) for key in keys if key in fields), default)
