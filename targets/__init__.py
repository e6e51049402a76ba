"""Devices as plug-ins: one folder per device, found by the names of its files.

`target.py` states a `DeviceTarget` as ``DEVICE``, and as ``GRAPH`` what the graphs are that
`export_NAME.py` makes and `run_NAME.py` runs; a folder without ``DEVICE`` is another compiler of a
device that names it. Other files of those prefixes are what these two are made of.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Literal

from edgedec.models.errors import ConfigError
from edgedec.targets.device_target import ChipOption, DeviceTarget, Place, PlaceOption
from edgedec.targets.graph_kind import GraphKind

__all__ = [
    "DeviceTarget",
    "GraphKind",
    "chip_targets",
    "device_module",
    "device_target",
    "device_target_names",
    "find_graph_kind",
    "graph_kinds",
    "library_suffixes",
    "missing_places",
    "place_needs",
    "place_target",
    "reporting_targets",
    "target_module",
]

_FOLDER = Path(__file__).parent


@cache
def device_target_names() -> tuple[str, ...]:
    """Returns the names `device_target` knows, sorted."""
    folders = sorted(path.parent.name for path in _FOLDER.glob("*/target.py"))
    return tuple(name for name in folders if hasattr(target_module(name, "target"), "DEVICE"))


def device_target(name: str) -> DeviceTarget:
    """Returns the device target called ``name``; an unknown name is a ConfigError."""
    if name not in device_target_names():
        known = ", ".join(device_target_names())
        raise ConfigError(f"unknown device target {name!r}; known: {known}")
    device: DeviceTarget = target_module(name, "target").DEVICE
    return device


def place_target(option: PlaceOption) -> DeviceTarget:
    """Returns the device target whose places ``option`` chooses among."""
    targets = map(device_target, device_target_names())
    return next(target for target in targets if target.place_option == option)


def place_needs(target: DeviceTarget, place: Place) -> str:
    """Returns what brings a place of ``target``, for messages."""
    from edgedec.models.installation import install_command  # errors alone say it

    return place.needs or install_command(find_graph_kind(target.compiler).extra)


def missing_places(target: DeviceTarget, here: Collection[str]) -> dict[str, str | None]:
    """Returns what brings each place of ``target``; None for those that are ``here``."""
    return {
        place.name: None if place.provider in here else place_needs(target, place)
        for place in target.places
    }


def reporting_targets() -> tuple[str, ...]:
    """Returns the folders whose ``run_report.py`` says what a machine has of a device, sorted."""
    return tuple(sorted(path.parent.name for path in _FOLDER.glob("*/run_report.py")))


def chip_targets(option: ChipOption) -> tuple[DeviceTarget, ...]:
    """Returns the device targets whose chips ``option`` chooses among."""
    targets = map(device_target, device_target_names())
    return tuple(target for target in targets if target.chip_option == option)


@cache
def graph_kinds() -> tuple[str, ...]:
    """Returns the names that compilers and backends share, sorted."""
    backends = {(path.parent, path.stem.removeprefix("run_")) for path in _FOLDER.glob("*/run_*")}
    return tuple(
        sorted(name for folder, name in backends if (folder / f"export_{name}.py").is_file())
    )


def find_graph_kind(name: str) -> GraphKind:
    """Returns what graphs of the compiler or backend ``name`` are; a LookupError if there is none.

    Another edgedec may know it.
    """
    graph_kind: GraphKind = target_module(_device_with(f"run_{name}"), "target").GRAPH
    return graph_kind


def library_suffixes(backend: str) -> tuple[str, ...]:
    """Returns what files end in that ``backend`` executes; none if it runs no compiled code."""
    return find_graph_kind(backend).libraries if backend in graph_kinds() else ()


def device_module(role: Literal["export", "run"], name: str) -> ModuleType:
    """Returns the module ``export_NAME`` or ``run_NAME`` of the one device that has it.

    Raises:
        ImportError: It needs something that is not installed.
        LookupError: No device has it.
    """
    return target_module(_device_with(f"{role}_{name}"), f"{role}_{name}")


def target_module(folder: str, stem: str) -> ModuleType:
    """Returns a module of a device's folder; an ImportError if it needs what is not installed."""
    return importlib.import_module(f"{__name__}.{folder}.{stem}")


def _device_with(stem: str) -> str:
    path = next(_FOLDER.glob(f"*/{stem}.py"), None)
    if path is None:
        raise LookupError(f"no device has {stem}.py")
    return path.parent.name
