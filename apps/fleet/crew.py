"""Those who do a fleet's work: workers on hosts that ssh reaches, or those of a Dask cluster."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import dask
from distributed import Client, Scheduler
from distributed.security import Security

from edgedec.apps.console.terminal import note
from edgedec.apps.fleet.config import Cluster, Fleet, Host
from edgedec.apps.fleet.connection import Start
from edgedec.apps.fleet.files_plugin import FilesPlugin
from edgedec.apps.fleet.keeper import CrewOptions, Keeper, Shipping
from edgedec.apps.fleet.tls import make_keys
from edgedec.models.errors import ConfigError, EdgedecError

_LOOK_S = 0.1
_CLUSTER_LOOK_S = 2.0


class Crew(Protocol):
    """Workers by label. lost: label -> why that worker gets no more tasks."""

    client: Client
    lost: dict[str, str]
    changed: asyncio.Event

    @property
    def addresses(self) -> Mapping[str, str]:
        """Label -> address of every worker that gets tasks."""

    def label(self, name: str) -> str:
        """Returns the label of the worker that calls itself ``name``."""

    def retire(self, label: str, reason: str) -> None:
        """Gives no more tasks to a worker."""


@asynccontextmanager
async def gather_crew(
    fleet: Fleet, shipping: Shipping, options: CrewOptions
) -> AsyncIterator[Crew]:
    """Yields the crew of a fleet, once every worker is there or did not come at its first try.

    Raises:
        EdgedecError: Nobody came.
    """
    for library in ("distributed", "asyncssh", "tornado"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    # A worker holds one task at a time, so that slow ones have no store of tasks at the end.
    with dask.config.set({"distributed.scheduler.worker-saturation": 1.0}):
        if fleet.cluster is not None:
            async with _cluster_crew(fleet.cluster, shipping, options) as workers:
                yield workers
        else:
            async with _ssh_crew(fleet.hosts, shipping, options) as hosts:
                yield hosts


class SshCrew:
    """Workers on hosts that ssh reaches, with a scheduler in this process."""

    def __init__(self, client: Client, scheduler: Scheduler, keepers: Sequence[Keeper]) -> None:
        self.client = client
        self.lost: dict[str, str] = {}
        self.changed = asyncio.Event()
        self._scheduler = scheduler
        self._keepers = {keeper.host.label: keeper for keeper in keepers}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def addresses(self) -> Mapping[str, str]:
        """Label -> address, which a host keeps when it was away."""
        return {
            label: f"tls://127.0.0.1:{keeper.port}"
            for label, keeper in self._keepers.items()
            if label not in self.lost
        }

    def label(self, name: str) -> str:
        """Returns ``name``: workers are called as their hosts."""
        return name

    def retire(self, label: str, reason: str) -> None:
        """Ends a host's worker for good."""
        if label not in self.lost:
            self._lose(label, reason)
            self._tasks[label].cancel()

    async def come(self) -> None:
        """Starts all hosts; returns once each works, or did not at its first try."""
        for label, keeper in self._keepers.items():
            self._tasks[label] = asyncio.create_task(keeper.keep(self._lose))
        while not all(map(self._is_settled, self._keepers)):
            await asyncio.sleep(_LOOK_S)

    async def leave(self) -> None:
        """Ends all workers."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _is_settled(self, label: str) -> bool:
        works = self.addresses.get(label) in self._scheduler.workers
        return works or self._keepers[label].is_tried or self._tasks[label].done()

    def _lose(self, label: str, reason: str) -> None:
        self.lost[label] = reason
        self.changed.set()
        note(f"{label} is left out: {reason}")


@asynccontextmanager
async def _ssh_crew(
    hosts: Sequence[Host], shipping: Shipping, options: CrewOptions
) -> AsyncIterator[SshCrew]:
    tls = make_keys()
    roles = {f"tls_{role}_{part}": tls[part] for role in ("client", "scheduler", "worker")
             for part in ("cert", "key")}  # fmt: skip
    security = Security(require_encryption=True, tls_ca_file=tls["cert"], **roles)
    local = {"host": "127.0.0.1", "port": 0, "protocol": "tls", "security": security}
    page = "127.0.0.1:0"  # its HTTP server, at any free port: nobody else need leave 8787 free
    async with Scheduler(
        **local, dashboard=False, dashboard_address=page, worker_ttl=None
    ) as scheduler:
        start = Start(secrets.token_hex(8), options.is_forced, scheduler.port, tls)
        keepers = [Keeper(host, start, shipping, options) for host in hosts]
        async with Client(scheduler.address, security=security, asynchronous=True) as client:
            crew = SshCrew(client, scheduler, keepers)
            try:
                await crew.come()
                yield crew
            finally:
                await crew.leave()


class ClusterCrew:
    """Workers of a Dask cluster that somebody else runs. Labels are numbers, not addresses."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.lost: dict[str, str] = {}
        self.changed = asyncio.Event()
        self._addresses: dict[str, str] = {}
        self._labels: dict[str, str] = {}

    @property
    def addresses(self) -> Mapping[str, str]:
        """Label -> address."""
        return {label: at for label, at in self._addresses.items() if label not in self.lost}

    def label(self, name: str) -> str:
        """Returns the label of a worker."""
        return self._labels.setdefault(name, f"worker {len(self._labels) + 1}")

    def retire(self, label: str, reason: str) -> None:
        """Names a worker that failed. It goes on serving others, and gets no more of our tasks."""
        if label not in self.lost:
            self.lost[label] = reason
            self.changed.set()
            note(f"{label} is left out: {reason}")

    async def look(self) -> None:
        """Notes which workers there are now."""
        workers = (await self.client.scheduler.identity())["workers"]
        for address, info in sorted(workers.items()):
            self._addresses[self.label(str(info["name"]))] = address
        for label, address in self.addresses.items():
            if address not in workers:
                self.retire(label, "it left the cluster")

    async def watch(self) -> None:
        """Notes who comes and goes, for ever."""
        while True:
            await asyncio.sleep(_CLUSTER_LOOK_S)
            await self.look()


@asynccontextmanager
async def _cluster_crew(
    cluster: Cluster, shipping: Shipping, options: CrewOptions
) -> AsyncIterator[ClusterCrew]:
    paths = {f"tls_client_{part}": cluster.tls[part] for part in ("cert", "key") if cluster.tls}
    security = (
        Security(require_encryption=True, tls_ca_file=cluster.tls["ca"], **paths)
        if cluster.tls
        else Security()
    )
    try:
        client = await Client(
            cluster.address, security=security, asynchronous=True, timeout=options.patience_s
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"no Dask scheduler answers at {cluster.address} ({error})") from None
    async with client:
        crew = ClusterCrew(client)
        await crew.look()
        if not crew.addresses:
            raise EdgedecError(f"the cluster at {cluster.address} has no workers")
        await _bring_files(crew, shipping)
        watching = asyncio.create_task(crew.watch())
        try:
            yield crew
        finally:
            watching.cancel()


async def _bring_files(crew: ClusterCrew, shipping: Shipping) -> None:
    """Brings files to the workers there are and, by way of the scheduler, to those that come."""
    needed = shipping({"triple": "a cluster"})
    if not needed:
        return
    plugin = FilesPlugin.of(needed)
    answers = await crew.client.register_plugin(plugin, name=plugin.name)
    for answer in (answers or {}).values():
        if answer.get("status") == "error":
            raise EdgedecError(f"a worker cannot keep the files: {answer.get('exception')}")
