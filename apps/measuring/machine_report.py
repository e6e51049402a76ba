"""What this machine is, what edgedec uses of it, and what is missing."""

from __future__ import annotations

import dataclasses
import os
import platform
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from edgedec import __version__
from edgedec.apps.measuring.installed import Requirement, extras
from edgedec.kernels import cpu, library
from edgedec.system.device import read_device
from edgedec.system.machine import last_caches, read_cpu, system_name
from edgedec.system.memory import memory_bytes
from edgedec.system.processors import physical_cores
from edgedec.targets import (
    device_target,
    device_target_names,
    find_graph_kind,
    reporting_targets,
    target_module,
)
from edgedec.targets.graph_kind import System


def examine() -> dict[str, Any]:
    """Returns the report, JSON-ready."""
    problems: list[str] = []
    _check_onnxruntime(problems)
    cpu = read_cpu()
    total, available = memory_bytes()
    device = read_device()
    return {
        "edgedec_version": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": {"model": device.model, "soc": device.soc, "cores": device.cores},
        "cpu": {**dataclasses.asdict(cpu), "n_physical_usable": physical_cores()},
        "last_caches": [dataclasses.asdict(cache) for cache in last_caches()],
        "memory": {"total_bytes": total, "available_bytes": available},
        "targets": {name: report_of(name).report() for name in reporting_targets()},
        "kernels": _examine_kernels(problems),
        "systems": {name: system.name == system_name() for name, system in named_systems().items()},
        "uses": {"threads": physical_cores(), "backend": "fused graph with edgedec's kernels"},
        "extras": {name: _extra(packages) for name, packages in extras().items()},
        "problems": problems,
    }


def _check_onnxruntime(problems: list[str]) -> None:
    try:
        import onnxruntime  # noqa: F401
    except ImportError as error:
        if find_spec("tvm_ffi") is None:  # with it there are bundles that need no ONNX Runtime
            problems.append(f"onnxruntime does not import ({error}): pip install onnxruntime")


def report_of(name: str) -> ModuleType:
    """Returns what says which parts of a device are on this machine."""
    return target_module(name, "run_report")


def named_systems() -> dict[str, System]:
    """Returns the device targets whose bundles one operating system runs, with that system."""
    compilers = {name: device_target(name).compiler for name in device_target_names()}
    systems = {name: find_graph_kind(compiler).system for name, compiler in compilers.items()}
    return {name: system for name, system in systems.items() if system is not None}


def _examine_kernels(problems: list[str]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "library": None,
        "available_isas": [],
        "active_isa": None,
        "EDGEDEC_ISA": os.environ.get("EDGEDEC_ISA"),
    }
    if not library.has_library():
        problems.append(
            "the kernel library is not built: run `pip install --no-build-isolation -e .` in the "
            "checkout, or `make run`"
        )
        return facts
    facts["library"] = str(library.library_path())
    try:
        facts["available_isas"] = list(cpu.available_isas())
        facts["active_isa"] = cpu.active_isa()
    except (RuntimeError, ValueError, OSError) as error:
        problems.append(f"the kernels cannot be used: {error}")
    return facts


def _extra(packages: tuple[Requirement, ...]) -> dict[str, Any]:
    missing = [p for p in packages if p.installed is None]
    quoted = " ".join(f"'{p.name}{p.bounds}'" for p in missing)
    return {
        "is_complete": not missing,
        "packages": {p.name: p.installed for p in packages},
        "missing": [p.name for p in missing],
        "install": f"pip install {quoted}" if missing else None,
    }
