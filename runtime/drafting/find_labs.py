"""Methods of `edgedec.labs`, found by name: nothing of the runtime imports them."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType
from typing import Literal

_Room = Literal["drafters", "methods", "prefill", "unmasking", "verifiers"]


def lab_names(room: _Room) -> tuple[str, ...]:
    """Returns the names of what a room of labs has, sorted."""
    folder = import_module(f"edgedec.labs.{room}").__path__
    return tuple(sorted(module.name for module in pkgutil.iter_modules(folder)))


def lab_module(room: _Room, name: str) -> ModuleType:
    """Returns a module of labs; a ModuleNotFoundError if there is none of this name."""
    return import_module(f"edgedec.labs.{room}.{name}")
