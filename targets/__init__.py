"""Devices as plug-ins: one folder per device, found by the names of its files.

`target.py` states a `DeviceTarget`. `export_NAME.py` beside `run_NAME.py` is the compiler NAME and
the backend that runs its graphs; other files of those prefixes are what these two are made of.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Literal

from edgedec.models.errors import ConfigError
from edgedec.targets.profile import DeviceTarget

__all__ = [
    "DeviceTarget",
    "device_module",
    "device_target",
    "device_target_names",
    "graph_kinds",
]

_FOLDER = Path(__file__).parent


def device_target_names() -> tuple[str, ...]:
    """Returns the names `device_target` knows, sorted."""
    return tuple(sorted(path.parent.name for path in _FOLDER.glob("*/target.py")))


def device_target(name: str) -> DeviceTarget:
    """Returns the device target called ``name``; an unknown name is a ConfigError."""
    if name not in device_target_names():
        known = ", ".join(device_target_names())
        raise ConfigError(f"unknown device target {name!r}; known: {known}")
    found: DeviceTarget = importlib.import_module(f"edgedec.targets.{name}.target").DEVICE
    return found


def graph_kinds() -> tuple[str, ...]:
    """Returns the names that compilers and backends share, sorted."""
    backends = {(path.parent, path.stem.removeprefix("run_")) for path in _FOLDER.glob("*/run_*")}
    return tuple(
        sorted(name for folder, name in backends if (folder / f"export_{name}.py").is_file())
    )


def device_module(role: Literal["export", "run"], name: str) -> ModuleType:
    """Returns the module ``export_NAME`` or ``run_NAME`` of the one device that has it.

    Raises:
        ImportError: It needs something that is not installed.
        LookupError: No device has it.
    """
    found = next(_FOLDER.glob(f"*/{role}_{name}.py"), None)
    if found is None:
        raise LookupError(f"no device has {role}_{name}.py")
    return importlib.import_module(f"{__name__}.{found.parent.name}.{found.stem}")
