"""Looks at every host at once, as `fleet doctor` and `fleet export` do."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import asyncssh

from edgedec.apps.fleet.config import Host
from edgedec.apps.fleet.connection import HostError, Session, Start, connected
from edgedec.apps.fleet.hello import problem_of

_SHELL = (
    "uname -sm; getconf GNU_LIBC_VERSION; python3 -V; df -Pk . | awk 'END {print $4 \" kB free\"}'"
)
"""What a host without edgedec is asked."""


@dataclass(frozen=True)
class Seen:
    """What a host said. hello: None where edgedec does not run there. off_s: of its clock."""

    host: Host
    hello: dict[str, Any] | None
    problem: str | None
    system: str
    off_s: float | None


Visit = Callable[[Host, Session, dict[str, Any]], Any]


async def look_at(hosts: Sequence[Host], is_forced: bool, visit: Visit | None = None) -> list[Seen]:
    """Returns what all hosts say; ``visit`` may do something with each that has edgedec."""
    start = Start(secrets.token_hex(8), is_forced, 0, {})
    return list(await asyncio.gather(*(_look(host, start, visit) for host in hosts)))


async def _look(host: Host, start: Start, visit: Visit | None) -> Seen:
    hello, system = None, ""
    try:
        async with connected(host) as connection:
            try:
                session = Session(host, connection, start)
                hello = await session.open()
                off_s = hello["clock_s"] - time.time()
                if visit is not None:
                    await visit(host, session, hello)
                return Seen(host, hello, problem_of(hello), hello["device"]["system"], off_s)
            except HostError as error:
                if hello is None:
                    system = await _system(connection)
                raise error
    except HostError as error:
        return Seen(host, hello, str(error), system, None)


async def _system(connection: asyncssh.SSHClientConnection) -> str:
    """Returns what a host without edgedec is, as far as its shell knows."""
    try:
        done = await connection.run(_SHELL, check=False, timeout=20)
    except (asyncssh.Error, OSError, TimeoutError):
        return ""
    return ", ".join(str(done.stdout or "").split("\n")).strip(", ")
