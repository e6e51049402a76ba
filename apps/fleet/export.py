"""`edgedec fleet export`: makes a bundle for each kind of host once, and copies it to them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgedec.apps.console.terminal import note
from edgedec.apps.fleet.bundles import SUFFIX, Bundles
from edgedec.apps.fleet.config import Host, read_fleet
from edgedec.apps.fleet.connection import Session
from edgedec.apps.fleet.probe import Seen, look_at
from edgedec.models.errors import ConfigError, EdgedecError
from edgedec.models.graph import ANY_TRIPLE
from edgedec.models.manifest import MANIFEST_NAME

_EDGEDEC = "from edgedec.apps.cli import main; main()"


async def export_fleet(
    file: Path, model: str, folder: Path, options: Sequence[str], is_compiled: bool, is_forced: bool
) -> None:
    """Makes the bundles that are missing in ``folder``, and copies each host's to it.

    is_compiled: bundles are for one kind of machine each.

    Raises:
        EdgedecError: A host cannot be reached, or a bundle not be made. What is done is kept.
    """
    fleet = read_fleet(file)
    if fleet.cluster is not None:
        raise ConfigError(f"{file} names a Dask cluster: export for it with `edgedec export`")
    folder.mkdir(parents=True, exist_ok=True)
    seen = await look_at(fleet.hosts, is_forced)
    kinds = sorted({host.hello["triple"] for host in seen if host.hello is not None})
    if not kinds:
        raise EdgedecError(_problems(seen))
    for kind in kinds if is_compiled else [ANY_TRIPLE]:
        await _make(model, folder / f"{kind}{SUFFIX}", options, kind)
    bundles = Bundles(folder)

    async def bring(host: Host, session: Session, hello: dict[str, Any]) -> None:
        shipped = bundles.for_host(hello)
        is_there = shipped.name in hello["files"]
        await session.bring(shipped, hello)
        note(f"{host.label}: {shipped.folder.name} {'was there' if is_there else 'copied'}")

    brought = await look_at(fleet.hosts, is_forced, bring)
    if any(bundle.problem for bundle in brought):
        raise EdgedecError(_problems(brought))


async def _make(model: str, bundle: Path, options: Sequence[str], kind: str) -> None:
    """Makes a bundle unless it is there."""
    if (bundle / MANIFEST_NAME).is_file():
        note(f"{bundle.name} is there already")
        return
    triple = [] if kind == ANY_TRIPLE else ["--triple", kind]
    command = [
        sys.executable,
        "-c",
        _EDGEDEC,
        "export",
        model,
        "-o",
        str(bundle),
        *options,
        *triple,
    ]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    if await process.wait() != 0:
        raise EdgedecError(f"cannot make {bundle.name}: see above")


def _problems(seen: Sequence[Seen]) -> str:
    failed = [f"{host.host.label}: {host.problem}" for host in seen if host.problem]
    return "; ".join(failed)
