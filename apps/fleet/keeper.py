"""Keeps one host at work: brings it what it needs, and brings it back when it was away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import asyncssh

from edgedec.apps.console.terminal import note
from edgedec.apps.fleet.config import Host
from edgedec.apps.fleet.connection import HostError, Session, Start, connected
from edgedec.apps.fleet.hello import problem_of
from edgedec.apps.fleet.shipped import Shipped
from edgedec.apps.fleet.worker import free_port
from edgedec.models.errors import EdgedecError

_AGAIN_S = (2.0, 5.0, 10.0, 20.0)
"""How long to wait before each further try; the last one stands for all that follow."""

_MAX_STARTS = 6
"""Workers of a host that may end by themselves before the host is given up."""

_MAX_CLOCK_S = 60.0

Shipping = Callable[[Mapping[str, Any]], Mapping[str, Shipped]]
"""From what a host says of itself to what it needs, by what tasks call it."""


@dataclass(frozen=True)
class CrewOptions:
    """How hosts are treated. patience_s: how long one may be away before it is given up."""

    is_forced: bool = False
    patience_s: float = 60.0


class Keeper:
    """One host of a fleet.

    port: of this machine, where the scheduler reaches the host's worker; always the same one.
    """

    def __init__(self, host: Host, start: Start, shipping: Shipping, options: CrewOptions) -> None:
        self.host, self.port = host, free_port()
        self.is_tried = False
        self.hello: dict[str, Any] | None = None
        self._start, self._shipping, self._options = start, shipping, options
        self._seen_s = time.monotonic()
        self._n_starts = 0

    async def keep(self, on_lost: Callable[[str, str], None]) -> None:
        """Has the host work until that is hopeless, and then says why."""
        n_failed = 0
        while True:
            try:
                await self._serve()
                n_failed = 0
                continue
            except HostError as error:
                reason, is_final = str(error), error.is_final
            except EdgedecError as error:  # of this machine's files
                reason, is_final = str(error), True
            except (asyncssh.Error, OSError) as error:
                reason, is_final = f"the connection failed ({error})", False
            self.is_tried = True
            is_late = time.monotonic() - self._seen_s > self._options.patience_s
            if is_final or is_late or self._n_starts >= _MAX_STARTS:
                on_lost(self.host.label, reason)
                return
            note(f"{self.host.label}: {reason}; trying again")
            await asyncio.sleep(_AGAIN_S[min(n_failed, len(_AGAIN_S) - 1)])
            n_failed += 1

    async def _serve(self) -> None:
        """Has the host work as long as one connection lasts."""
        async with connected(self.host) as connection:
            session = Session(self.host, connection, self._start)
            hello = await session.open()
            self.check(hello)
            needed = self._shipping(hello)
            for shipped in needed.values():
                if shipped.name not in hello["files"]:
                    note(f"{self.host.label}: copying {shipped.folder.name}")
                await session.bring(shipped, hello)
            self._n_starts += 1
            try:
                names = {alias: shipped.name for alias, shipped in needed.items()}
                await session.work(self.port, hello["port"], names)
            finally:
                self._seen_s = time.monotonic()

    def check(self, hello: dict[str, Any]) -> None:
        """Raises a HostError if a host that says this of itself cannot take part."""
        label, is_first = self.host.label, self.hello is None
        self.hello = hello
        if (problem := problem_of(hello)) is not None:
            raise HostError(problem, is_final=True)
        off_s = hello["clock_s"] - time.time()
        if is_first and abs(off_s) > _MAX_CLOCK_S:
            note(f"{label}: its clock is {off_s:+.0f} s off; results have this machine's time")
