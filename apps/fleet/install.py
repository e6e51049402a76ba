"""Installs edgedec on a host: the wheel for its processor, in an environment of its own.

Its dependencies come from the package index that pip uses there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import asyncssh

from edgedec.apps.fleet.config import Host
from edgedec.apps.fleet.connection import HostError, connected, shell_path

_ENVIRONMENT = re.compile(r"(?P<place>.+)/bin/python[0-9.]*")
_PROCESSORS = {"x86_64": ("x86_64",), "aarch64": ("aarch64", "arm64"), "arm64": ("arm64",)}
_SYSTEMS = {"Linux": "linux", "Darwin": "macosx"}


def find_wheel(wheels: Sequence[Path], system: str, processor: str) -> Path:
    """Returns the wheel for a machine, the newest of several.

    system, processor: as ``uname -s`` and ``uname -m`` tell.

    Raises:
        HostError: None is for it.
    """
    known = _PROCESSORS.get(processor, (processor,))
    fitting = [
        wheel
        for wheel in wheels
        if _SYSTEMS.get(system, system) in _platform(wheel) and _platform(wheel).endswith(known)
    ]
    if not fitting:
        there = ", ".join(_platform(wheel) for wheel in wheels) or "none"
        raise HostError(
            f"it is {system} on {processor}, the wheels here are for {there}: build one with "
            "`make wheels`",
            is_final=True,
        )
    return max(fitting, key=lambda wheel: wheel.stat().st_mtime)


def _platform(wheel: Path) -> str:
    return wheel.stem.rpartition("-")[2]


async def install(host: Host, wheels: Sequence[Path]) -> str:
    """Installs a wheel on a host and returns its name.

    Raises:
        HostError: There is no such wheel, or installing fails.
    """
    place = _ENVIRONMENT.fullmatch(host.python)
    if place is None or not host.python.startswith(host.workspace):
        raise HostError(
            f"`python` is {host.python}, which is not in `workspace`: install edgedec there by "
            "hand, or leave `python` out",
            is_final=True,
        )
    async with connected(host) as connection:
        system, processor = (await _run(connection, "uname -sm")).split()
        wheel = find_wheel(wheels, system, processor)
        folder = shell_path(host.workspace)
        await _run(connection, f"mkdir -p {folder}")
        await asyncssh.scp(str(wheel), (connection, str(PurePosixPath(host.workspace, wheel.name))))
        environment = shell_path(place["place"])
        await _run(connection, f"test -x {environment}/bin/python || python3 -m venv {environment}")
        copied = shlex.quote(f"./{wheel.name}[fleet]")
        await _run(
            connection,
            f"cd {folder} && {shell_path(host.python)} -m pip install --quiet "
            f"--disable-pip-version-check {copied} && {shell_path(host.python)} -m pip install "
            f"--quiet --disable-pip-version-check --no-deps --force-reinstall {copied} && "
            f"rm {shlex.quote(wheel.name)}",
        )
    return wheel.name


async def _run(connection: asyncssh.SSHClientConnection, command: str) -> str:
    """Returns what a command prints.

    Raises:
        HostError: It fails.
    """
    done = await connection.run(command, check=False)
    if done.exit_status != 0:
        said = [line for line in str(done.stderr or "").splitlines() if line.strip()]
        raise HostError(f"installing failed: {said[-1] if said else 'no message'}", is_final=True)
    return str(done.stdout)
