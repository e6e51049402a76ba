"""Checks that the fields of requests share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from edgedec.models.errors import ConfigError


def refuse_unknown(cls: type[Any], fields: Mapping[str, Any]) -> None:
    """Raises a ConfigError if ``fields`` has a key that ``cls`` has no field for."""
    known = sorted(f.name for f in dataclasses.fields(cls))
    if unknown := sorted(set(fields) - set(known)):
        raise ConfigError(f"unknown {cls.__name__} key {unknown[0]!r}; known: {', '.join(known)}")


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
        raise ConfigError(f"{name} is {value!r}, expected {expected}; {hint}")


def check_count(name: str, value: Any, low: int, hint: str) -> None:
    """Raises a ConfigError unless ``value`` is a whole number of at least ``low``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ConfigError(f"{name} is {value!r}, expected a whole number of at least {low}; {hint}")
