"""Methods of `edgedec.labs`, found by name: nothing of the runtime imports them.

An installation may leave that package out. Its methods are then unknown, and all others work.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Literal

from edgedec.models.errors import ConfigError

_PACKAGE = "edgedec.labs"
_Room = Literal["drafters", "methods", "prefill", "unmasking", "verifiers"]


def lab_names(room: _Room) -> tuple[str, ...]:
    """Returns the names of what a room of labs has, sorted; none without labs."""
    if find_spec(_PACKAGE) is None:
        return ()
    folder = import_module(f"{_PACKAGE}.{room}").__path__
    return tuple(sorted(module.name for module in pkgutil.iter_modules(folder)))


def lab_module(room: _Room, name: str) -> ModuleType:
    """Returns a module of labs.

    Raises:
        ConfigError: This installation has no labs.
        ModuleNotFoundError: Labs have no such module.
    """
    if find_spec(_PACKAGE) is None:
        raise ConfigError(
            f"{name} needs the package {_PACKAGE}, which this installation leaves out: "
            "install edgedec whole"
        )
    return import_module(f"{_PACKAGE}.{room}.{name}")
