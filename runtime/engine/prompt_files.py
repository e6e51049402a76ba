"""Reads files of prompts: one JSON object a line or in one list, in the forms benchmarks use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgedec.models.errors import ConfigError, SessionError
from edgedec.models.fields import shown
from edgedec.models.json_lines import json_values
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.text.infill import FORMATS, find_infill_tokens
from edgedec.runtime.text.prompt import checked_message
from edgedec.runtime.text.tokenizer import without_surrogates
from edgedec.system.files import how_to_convert, read_text

_CATEGORY_KEYS = ("subtask", "category")
_NAME_KEYS = ("task_id", "question_id", "id", "name")
_FORMS = '{"prompt": ...}, {"prompt": ..., "suffix": ...}, {"turns": [...]} or {"messages": [...]}'
_SPEAKERS = {"human": "user", "gpt": "assistant"}
"""What ShareGPT calls roles."""


@dataclass(frozen=True)
class FilePrompt:
    """place: file and line. text: a prompt, or the chat messages before an answer.

    suffix: what follows the text to write between it and ``text``; None where nothing is filled in.
    prediction: see `GenerationConfig.prediction`. tools: what the chat template shows the model.
    """

    name: str
    category: str
    place: str
    text: str | list[dict[str, Any]]
    suffix: str | None = None
    prediction: str = ""
    tools: tuple[dict[str, Any], ...] = ()

    def encode(self, engine: Engine, is_chat: bool) -> list[int]:
        """Returns the token ids; ``is_chat`` puts the prompt into the chat template.

        Texts to fill in go without the template.

        Raises:
            ConfigError: Messages cannot go without the template, or the model cannot fill in.
        """
        if self.tools and not (is_chat and engine.encoder.reads_tools):
            raise ConfigError(
                f"{self.place} has tools, which only --chat and a chat template that shows tools "
                "can encode: leave them out"
            )
        if self.suffix is not None:
            return self.encode_infill(engine, is_typing=False)
        if isinstance(self.text, list):
            if not is_chat:
                raise ConfigError(f"{self.place} has messages, which only --chat can encode")
            return engine.encoder.encode(self.text, self.tools)
        messages = [{"role": "user", "content": self.text.rstrip("\n")}]
        return engine.encoder.encode(messages if is_chat else self.text, self.tools)

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
        text = read_text(path)
    except OSError as error:
        raise ConfigError(f"cannot read prompts from {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {how_to_convert(error)}") from None
    for place, fields in json_values(text, label, _FORMS):
        yield _read_prompt(fields, path, place, category_key)


def _read_prompt(fields: Any, path: Path, place: str, category_key: str | None) -> FilePrompt:
    text = _text(fields, place) if isinstance(fields, dict) else None
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
        tools=_tools(fields, place),
    )


def _text(fields: dict[str, Any], place: str) -> str | list[dict[str, Any]] | None:
    """Returns the prompt of an object, None if it has none that is not empty."""
    turns = fields.get("turns")
    prompt = turns[0] if isinstance(turns, list) and turns else fields.get("prompt")
    system = fields.get("system")
    if isinstance(prompt, str) and (prompt.strip() or fields.get("suffix")):
        if system:
            raise ConfigError(f"{place}: a system text stands in messages, expected {_FORMS}")
        return without_surrogates(prompt)
    messages = next((fields[key] for key in ("messages", "conversations") if key in fields), prompt)
    if not isinstance(messages, list) or not messages:
        return None
    if "conversations" in fields:
        messages = _first_messages(messages)
    if system:
        messages = [{"role": "system", "content": system}, *messages]
    try:
        return [checked_message(message) for message in messages] or None
    except SessionError as error:
        raise ConfigError(f"{place}: no prompt: {error}") from None


def _first_messages(conversation: Sequence[Any]) -> list[Any]:
    """Returns the messages of ShareGPT before the first answer."""
    messages: list[Any] = []
    for turn in conversation:
        message = turn
        if isinstance(turn, dict) and "value" in turn:
            speaker = turn.get("from", turn.get("role"))
            role = _SPEAKERS.get(speaker, speaker) if isinstance(speaker, str) else speaker
            message = {"role": role, "content": turn["value"]}
        if isinstance(message, dict) and message.get("role") == "assistant":
            break
        messages.append(message)
    return messages


def _tools(fields: dict[str, Any], place: str) -> tuple[dict[str, Any], ...]:
    """Returns the tools that a prompt offers."""
    tools = fields.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ConfigError(f"{place}: tools are {shown(tools)}, expected a list of objects")
    return tuple(tools)


def _suffix(fields: dict[str, Any], place: str) -> str | None:
    """Returns what stands behind the text to fill in, None where a prompt has no such place."""
    suffix = fields.get("suffix")
    if suffix is None:
        return None
    if not isinstance(suffix, str) or not isinstance(fields.get("prompt"), str):
        raise ConfigError(f"{place}: a suffix is a text beside a prompt, expected {_FORMS}")
    return without_surrogates(suffix)


def _prediction(fields: dict[str, Any], place: str) -> str:
    """Returns the text that an answer is likely to repeat."""
    prediction = fields.get("prediction")
    if not isinstance(prediction, str | None):
        raise ConfigError(f"{place}: prediction is {shown(prediction)}, expected text")
    return without_surrogates(prediction or "")


def _first(fields: dict[str, Any], keys: Sequence[str], default: str) -> str:
    return next((str(fields[key]) for key in keys if fields.get(key) is not None), default)
