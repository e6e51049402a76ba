"""JSON values of a text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from edgedec.models.errors import ConfigError


def json_values(text: str, name: str, expected: str) -> Iterator[tuple[str, Any]]:
    """Yields values with their places: one a line, or the objects of one list.

    name: of the text, for places. expected: what a value should be, for messages.

    Raises:
        ConfigError: A line is not JSON.
    """
    if (items := _objects(text)) is not None:
        yield from ((f"{name}, item {i}", item) for i, item in enumerate(items, 1))
        return
    for i, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"{name}:{i}: not valid JSON ({error}), expected {expected}"
            ) from None
        yield f"{name}:{i}", value


def _objects(text: str) -> list[dict[str, Any]] | None:
    """Returns the objects of a text that is one list of them, None if it is something else."""
    if text.lstrip()[:1] != "[":
        return None
    with suppress(ValueError, RecursionError):
        items = json.loads(text)
        if items and all(isinstance(item, dict) for item in items):
            return list(items)
    return None
