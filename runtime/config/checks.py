"""Checks that the fields of requests share."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgedec.models.errors import ConfigError
from edgedec.models.fields import shown


def refuse_unknown(cls: type[Any], fields: Mapping[str, Any]) -> None:
    """Raises a ConfigError if ``fields`` has a key that ``cls`` has no field for."""
    known = sorted(f.name for f in dataclasses.fields(cls))
    if unknown := sorted(set(fields) - set(known)):
        import difflib  # only a mistake is worth its time

        near = difflib.get_close_matches(unknown[0], known, 1, 0.5)
        meant = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(
            f"unknown {cls.__name__} key {unknown[0]!r}; {meant}known: {', '.join(known)}"
        )


def is_number(value: Any) -> bool:
    """Whether ``value`` is a number, which True is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_number(name: str, value: Any, low: float, high: float, hint: str) -> None:
    """Raises a ConfigError unless ``value`` is a finite number from ``low`` to ``high``."""
    inside = is_number(value) and math.isfinite(value) and low <= value <= high
    if not inside:
        if low == -math.inf:
            expected = "a finite number"
        elif high == math.inf:
            expected = f"a finite number of at least {low:g}"
        else:
            expected = f"a number from {low:g} to {high:g}"
        raise ConfigError(f"{name} is {shown(value)}, expected {expected}; {hint}")


def check_count(name: str, value: Any, low: int, hint: str) -> None:
    """Raises a ConfigError unless ``value`` is a whole number of at least ``low``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ConfigError(
            f"{name} is {shown(value)}, expected a whole number of at least {low}; {hint}"
        )


def check_type(name: str, value: Any, kind: type[Any], expected: str) -> None:
    """Raises a ConfigError unless ``value`` is a ``kind``, which messages call ``expected``."""
    if not isinstance(value, kind):
        raise ConfigError(f"{name} is {shown(value)}, expected {expected}")


def check_json_fields(name: str, value: Any) -> None:
    """Raises a ConfigError unless ``value`` is a mapping from texts to JSON values."""
    is_fields = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    try:
        json.dumps(dict(value) if is_fields else value)
    except (TypeError, ValueError, RecursionError):
        is_fields = False
    if not is_fields:
        raise ConfigError(
            f"{name} is {shown(value)}, expected JSON values by name, such as "
            "{'enable_thinking': False}"
        )


def check_callable(name: str, value: Any, expected: str = "a function") -> None:
    """Raises a ConfigError unless ``value`` can be called; ``expected`` says what is meant."""
    if not callable(value):
        raise ConfigError(f"{name} is {shown(value)}, expected {expected}")


def check_progress(value: Any) -> None:
    """Raises a ConfigError unless ``value`` is None or can be called with progress."""
    if value is not None:
        check_callable("on_progress", value, "a function or None")


def checked_path(name: str, value: Any) -> Path:
    """Returns ``value`` as a path; raises a ConfigError if no file can be called so."""
    try:
        text = os.fspath(value)
        if isinstance(text, str) and text and b"\0" not in os.fsencode(text):
            return Path(text)
    except (TypeError, UnicodeEncodeError):
        pass
    raise ConfigError(f"{name} is {shown(value)}, expected the path of a file or folder")


def checked_counts(name: str, value: Any, meant: str = "token ids") -> tuple[int, ...]:
    """Returns ``value`` as whole numbers; raises a ConfigError if it holds anything else."""
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping):
        raise ConfigError(f"{name} is {shown(value)}, expected several {meant}")
    try:
        numbers = tuple(value)
    except TypeError:
        raise ConfigError(f"{name} is {shown(value)}, expected several {meant}") from None
    for number in numbers:
        check_count(f"one of {name}", number, 0, f"{meant} are meant")
    return numbers


def checked_texts(name: str, value: Any) -> tuple[str, ...]:
    """Returns a text, or several, as several; a ConfigError if one is empty or no text."""
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Sequence) or isinstance(value, bytes | bytearray | memoryview):
        raise ConfigError(f"{name} is {shown(value)}, expected a text, or several")
    for text in value:
        if not isinstance(text, str) or not text:
            raise ConfigError(f"one of {name} is {shown(text)}, expected text that is not empty")
    return tuple(value)
