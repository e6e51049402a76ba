"""`edgedec fleet doctor`: what the hosts are, and what keeps them from working."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgedec.apps.console.tables import table
from edgedec.apps.console.terminal import bytes_text, note, print_json, write_out
from edgedec.apps.fleet.bundles import Bundles
from edgedec.apps.fleet.config import Host, read_fleet
from edgedec.apps.fleet.connection import HostError
from edgedec.apps.fleet.install import install
from edgedec.apps.fleet.probe import Seen, look_at
from edgedec.models.errors import ConfigError

_CLOCK_S = 60.0


async def examine_fleet(
    file: Path, bundle: Path | None, wheels: Path | None, is_forced: bool, is_json: bool
) -> bool:
    """Prints what every host is; returns whether all can work."""
    fleet = read_fleet(file)
    if fleet.cluster is not None:
        raise ConfigError(f"{file} names a Dask cluster: doctor looks at hosts that ssh reaches")
    bundles = None if bundle is None else Bundles(bundle)
    failed = {} if wheels is None else await _install_all(fleet.hosts, _wheels(wheels))
    seen = await look_at(fleet.hosts, is_forced)
    rows = [_row(host, bundles, failed.get(host.host.label)) for host in seen]
    if is_json:
        print_json({"hosts": rows})
    else:
        write_out(_render(rows))
    return not any(row["problem"] for row in rows)


def _wheels(path: Path) -> list[Path]:
    wheels = [path] if path.suffix == ".whl" else sorted(path.glob("*.whl"))
    if not wheels or not all(wheel.is_file() for wheel in wheels):
        raise ConfigError(f"{path} has no wheels: build them with `make wheels`")
    return wheels


async def _install_all(hosts: Sequence[Host], wheels: Sequence[Path]) -> dict[str, str]:
    """Returns why installing failed, by label."""

    async def install_host(host: Host) -> str | None:
        note(f"{host.label}: installing")
        try:
            note(f"{host.label}: installed {await install(host, wheels)}")
        except HostError as error:
            return str(error)
        return None

    problems = await asyncio.gather(*map(install_host, hosts))
    pairs = zip(hosts, problems, strict=True)
    return {host.label: problem for host, problem in pairs if problem is not None}


def _row(seen: Seen, bundles: Bundles | None, failed: str | None) -> dict[str, Any]:
    """Returns what is known of a host, JSON-ready."""
    problem = failed or seen.problem
    if problem is None and bundles is not None and seen.hello is not None:
        try:
            bundles.for_host(seen.hello)
        except HostError as error:
            problem = str(error)
    clock = None if seen.off_s is None else round(seen.off_s)
    return {
        "label": seen.host.label,
        "system": seen.system,
        "problem": problem,
        "clock_off_s": clock,
        "hello": seen.hello,
    }


def _render(rows: Sequence[Mapping[str, Any]]) -> str:
    header = ["host", "device", "cores", "kernels", "memory", "disk free", "hottest", "status"]
    return table(header, [_cells(row) for row in rows])


def _cells(row: Mapping[str, Any]) -> list[str]:
    status, hello = row["problem"] or "ready", row["hello"]
    if row["clock_off_s"] and abs(row["clock_off_s"]) > _CLOCK_S:
        status += f"; its clock is {row['clock_off_s']:+d} s off"
    if hello is None:
        return [row["label"], row["system"], "", "", "", "", "", status]
    device, celsius = hello["device"], hello["state"]["max_celsius"]
    return [
        row["label"],
        device["model"] or device["cpu"],
        ", ".join(f"{n} {kind}" for kind, n in device["cores"].items())
        + f", {device['n_usable']} usable",
        str(hello["isa"]),
        bytes_text(device["memory_bytes"]),
        bytes_text(hello["free_bytes"]),
        "" if celsius is None else f"{celsius:.0f} °C",
        status,
    ]
