"""Settings of suggestions while typing, as people write them down."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from edgedec.autocomplete import AutocompleteConfig
from edgedec.models.fields import Fields

TYPING_NAMES = {field.name for field in fields(AutocompleteConfig)}
"""Their names."""


def typing_config(read: Fields, now: AutocompleteConfig) -> AutocompleteConfig:
    """Returns ``now`` with what ``read`` has put in its place.

    Raises:
        ConfigError: A value makes no sense.
    """
    return replace(now, **{name: _value(read, name, getattr(now, name)) for name in TYPING_NAMES})


def _value(read: Fields, key: str, now: Any) -> Any:
    if isinstance(now, bool):
        return read.flag(key, now)
    if isinstance(now, int):
        return read.integer(key, now)
    return read.number(key, now) if isinstance(now, float) else read.text(key, now)
