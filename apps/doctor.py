"""`edgedec doctor`: what this machine is, what edgedec uses of it, and what is missing."""

from __future__ import annotations

import dataclasses
import os
import platform
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from edgedec import __version__, kernels
from edgedec.apps.console.consoles import out
from edgedec.apps.console.terminal import bytes_text, print_json
from edgedec.apps.measuring.installed import Requirement, extras
from edgedec.apps.options import common as options
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


def doctor(json: options.Json = False, debug: options.Debug = False) -> None:
    """Show this machine, what edgedec will use on it, and what is missing.

    Exits with 1 if something that `edgedec run` needs is missing.

    Examples:

      edgedec doctor

      edgedec doctor --json
    """
    report = examine()
    if json:
        print_json(report)
    else:
        _show(report)
    if report["problems"]:
        raise typer.Exit(1)


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
        "targets": {name: _report_of(name).report() for name in reporting_targets()},
        "kernels": _examine_kernels(problems),
        "systems": {name: one.name == system_name() for name, one in _systems().items()},
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


def _report_of(name: str) -> ModuleType:
    """Returns what says which parts of a device are on this machine."""
    return target_module(name, "run_report")


def _systems() -> dict[str, System]:
    """Returns the device targets whose bundles one operating system runs, with that system."""
    compilers = {name: device_target(name).compiler for name in device_target_names()}
    systems = {name: find_graph_kind(compiler).system for name, compiler in compilers.items()}
    return {name: system for name, system in systems.items() if system is not None}


def _examine_kernels(problems: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "library": None,
        "available_isas": [],
        "active_isa": None,
        "EDGEDEC_ISA": os.environ.get("EDGEDEC_ISA"),
    }
    if not kernels.has_library():
        problems.append(
            "the kernel library is not built: run `pip install --no-build-isolation -e .` in the "
            "checkout, or `make run`"
        )
        return found
    found["library"] = str(kernels.library_path())
    try:
        found["available_isas"] = list(kernels.available_isas())
        found["active_isa"] = kernels.active_isa()
    except (RuntimeError, ValueError, OSError) as error:
        problems.append(f"the kernels cannot be used: {error}")
    return found


def _extra(packages: tuple[Requirement, ...]) -> dict[str, Any]:
    missing = [p for p in packages if p.installed is None]
    wanted = " ".join(f"'{p.name}{p.bounds}'" for p in missing)
    return {
        "is_complete": not missing,
        "packages": {p.name: p.installed for p in packages},
        "missing": [p.name for p in missing],
        "install": f"pip install {wanted}" if missing else None,
    }


def _show(report: dict[str, Any]) -> None:
    out.print(_machine_table(report))
    out.print(_extras_table(report["extras"]))
    for name, extra in report["extras"].items():
        if extra["install"]:
            out.print(f"extra [bold]{escape(name)}[/]:", end=" ")
            out.print(extra["install"], markup=False, soft_wrap=True)
    for name, found in report["targets"].items():
        for what, install in _report_of(name).installs(found).items():
            out.print(f"[bold]{escape(what)}[/]:", end=" ")
            out.print(install, markup=False, soft_wrap=True)
    for problem in report["problems"]:
        out.print("[bold red]problem:[/]", end=" ")
        out.print(problem, markup=False, soft_wrap=True)
    if not report["problems"]:
        out.print("[green]ready to run bundles[/]")


def _machine_table(report: dict[str, Any]) -> Table:
    cpu, memory, found = report["cpu"], report["memory"], report["kernels"]
    free = memory["available_bytes"]
    cores = (
        f"{cpu['n_physical_usable']} physical and {cpu['n_usable']} logical usable "
        f"of {cpu['n_logical']}"
    )
    device = report["device"]
    kinds = ", ".join(f"{n} x {kind}" for kind, n in device["cores"].items())
    if len(device["cores"]) > 1:
        cores += f": {kinds}"
    rows = {
        "edgedec": f"{report['edgedec_version']}, Python {report['python']}",
        "system": report["platform"],
        "machine": ", ".join(filter(None, (device["model"], device["soc"]))) or "unknown",
        "processor": f"{cpu['model'] or kinds} ({cpu['architecture']})",
        "cores": cores,
        "last cache": _caches_text(report["last_caches"]),
        "instructions": " ".join(cpu["flags"]) or "unknown",
        "memory": bytes_text(memory["total_bytes"])
        + (f", {bytes_text(free)} available" if free is not None else ""),
        **{
            _report_of(name).TITLE: _report_of(name).line(found)
            for name, found in report["targets"].items()
        },
        "kernel library": found["library"] or "missing",
        "kernels": f"{found['active_isa'] or 'none'} (available: "
        f"{', '.join(found['available_isas']) or 'none'})",
        "threads": f"{report['uses']['threads']} by default",
    } | {name: _system_text(name, is_here) for name, is_here in report["systems"].items()}
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows.items():
        table.add_row(f"[bold]{name}[/]", escape(value))
    return table


def _system_text(target: str, is_here: bool) -> str:
    """Returns whether bundles for ``target`` run on this system."""
    here = "its bundles run here" if is_here else "its bundles are made here, and do not run here"
    return f"{here}: {_systems()[target].text} alone"


def _caches_text(caches: list[dict[str, Any]]) -> str:
    """Returns which cores share a cache; threads on cores that do exchange results sooner."""
    return (
        "; ".join(
            f"level {cache['level']}, {bytes_text(cache['size_bytes'])}, shared by cores "
            + " ".join(str(n) for n in cache["processors"])
            for cache in caches
        )
        or "unknown"
    )


def _extras_table(found: dict[str, Any]) -> Table:
    table = Table("extra", "status", "packages", box=None, padding=(0, 2, 0, 0))
    for name, extra in found.items():
        status = "[green]present[/]" if extra["is_complete"] else "[yellow]missing[/]"
        packages = ", ".join(
            f"{package} {installed}" if installed else f"[yellow]{package} missing[/]"
            for package, installed in extra["packages"].items()
        )
        table.add_row(escape(name), status, packages)
    return table
