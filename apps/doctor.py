"""`edgedec doctor`: what this machine is, what edgedec uses of it, and what is missing."""

from __future__ import annotations

from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from edgedec.apps.console.consoles import out
from edgedec.apps.console.facts import print_facts
from edgedec.apps.console.terminal import bytes_text, print_json
from edgedec.apps.measuring.machine_report import examine, named_systems, report_of
from edgedec.apps.options import common as options


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


def _show(report: dict[str, Any]) -> None:
    print_facts(_machine_facts(report))
    out.print(_extras_table(report["extras"]))
    for name, extra in report["extras"].items():
        if extra["install"]:
            out.print(f"extra [bold]{escape(name)}[/]:", end=" ")
            out.print(extra["install"], markup=False, soft_wrap=True)
    for name, facts in report["targets"].items():
        for what, install in report_of(name).installs(facts).items():
            out.print(f"[bold]{escape(what)}[/]:", end=" ")
            out.print(install, markup=False, soft_wrap=True)
    for problem in report["problems"]:
        out.print("[bold red]problem:[/]", end=" ")
        out.print(problem, markup=False, soft_wrap=True)
    if not report["problems"]:
        out.print("[green]ready to run bundles[/]")


def _machine_facts(report: dict[str, Any]) -> dict[str, str]:
    """Returns what there is of this machine, in words."""
    cpu, memory, kernels = report["cpu"], report["memory"], report["kernels"]
    free = memory["available_bytes"]
    cores = (
        f"{cpu['n_physical_usable']} physical and {cpu['n_usable']} logical usable "
        f"of {cpu['n_logical']}"
    )
    device = report["device"]
    kinds = ", ".join(f"{n} x {kind}" for kind, n in device["cores"].items())
    if len(device["cores"]) > 1:
        cores += f": {kinds}"
    return {
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
            report_of(name).TITLE: report_of(name).line(facts)
            for name, facts in report["targets"].items()
        },
        "kernel library": kernels["library"] or "missing",
        "kernels": f"{kernels['active_isa'] or 'none'} (available: "
        f"{', '.join(kernels['available_isas']) or 'none'})",
        "threads": f"{report['uses']['threads']} by default",
    } | {name: _system_text(name, is_here) for name, is_here in report["systems"].items()}


def _system_text(target: str, is_here: bool) -> str:
    """Returns whether bundles for ``target`` run on this system."""
    here = "its bundles run here" if is_here else "its bundles are made here, and do not run here"
    return f"{here}: {named_systems()[target].text} alone"


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


def _extras_table(facts: dict[str, Any]) -> Table:
    table = Table("extra", "status", "packages", box=None, padding=(0, 2, 0, 0))
    for name, extra in facts.items():
        status = "[green]present[/]" if extra["is_complete"] else "[yellow]missing[/]"
        packages = ", ".join(
            f"{package} {installed}" if installed else f"[yellow]{package} missing[/]"
            for package, installed in extra["packages"].items()
        )
        table.add_row(escape(name), status, packages)
    return table
