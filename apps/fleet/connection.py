"""One host of a fleet over ssh: what it says, the files it gets, and its worker.

ssh is the user's: configuration, agent, keys and known hosts are those of `ssh` itself.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import asyncssh

from edgedec.apps.console.terminal import bytes_text
from edgedec.apps.fleet.config import Host
from edgedec.apps.fleet.shipped import Shipped
from edgedec.models.errors import EdgedecError

_CONNECT_S, _ALIVE_S, _N_ALIVE = 20.0, 5.0, 3
"""Time to log in; how often a silent host is asked whether it is there, and how often in vain."""

_MAX_LINE = 16 << 20
_MODULE = "edgedec.apps.fleet.worker"


class HostError(EdgedecError):
    """A host cannot work. is_final: trying again would not help."""

    def __init__(self, text: str, is_final: bool) -> None:
        super().__init__(text)
        self.is_final = is_final


@dataclass(frozen=True)
class Start:
    """What workers need to take part. tls: ``cert`` and ``key`` of this run, as PEM texts."""

    run: str
    is_forced: bool
    scheduler_port: int
    tls: Mapping[str, str]


@asynccontextmanager
async def connected(host: Host) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """Yields a connection to a host.

    Raises:
        HostError: There is none. The reason says what to do.
    """
    try:
        connection = await asyncssh.connect(
            host.host,
            **({} if host.port is None else {"port": host.port}),
            **({} if host.user is None else {"username": host.user}),
            preferred_auth="publickey",
            connect_timeout=_CONNECT_S,
            login_timeout=_CONNECT_S,
            keepalive_interval=_ALIVE_S,
            keepalive_count_max=_N_ALIVE,
        )
    except asyncssh.HostKeyNotVerifiable:
        raise HostError(
            "its host key is unknown or has changed: check it, then run "
            f"`ssh-keygen -R {host.host}` and log in once with ssh",
            is_final=True,
        ) from None
    except asyncssh.PermissionDenied:
        raise HostError(
            f"ssh is refused: `ssh {host.host}` must log in with a key, without a password",
            is_final=True,
        ) from None
    except (TimeoutError, OSError, asyncssh.Error) as error:
        reason = str(error) or "no answer"
        raise HostError(f"cannot connect ({reason})", is_final=False) from None
    async with connection:
        yield connection


class Session:
    """The worker program of a host, which has not begun to work."""

    def __init__(self, host: Host, connection: asyncssh.SSHClientConnection, start: Start) -> None:
        self._host, self._connection, self._start = host, connection, start
        self._process: asyncssh.SSHClientProcess[str] | None = None

    async def open(self) -> dict[str, Any]:
        """Starts the program and returns what the host says of itself.

        Raises:
            HostError: It does not start, or refuses.
        """
        command = worker_command(self._host)
        self._process = await self._connection.create_process(
            command, stderr=asyncssh.PIPE, encoding="utf-8", errors="replace"
        )
        self._send(
            run=self._start.run,
            is_forced=self._start.is_forced,
            environment=dict(self._host.environment),
            cores=list(self._host.cores),
        )
        answer = await self._receive()
        if "hello" not in answer:
            raise HostError(str(answer.get("refused")), is_final=True)
        hello: dict[str, Any] = answer["hello"]
        return hello

    async def bring(self, shipped: Shipped, hello: Mapping[str, Any]) -> None:
        """Copies a folder to the host unless it is there; the host checks every hash.

        Raises:
            HostError: It does not fit, or arrives damaged.
        """
        if shipped.name in hello["files"]:
            return
        if shipped.n_bytes > hello["free_bytes"]:
            raise HostError(
                f"its disk has {bytes_text(hello['free_bytes'])} left, {shipped.folder.name} "
                f"needs {bytes_text(shipped.n_bytes)}: free some, or set `workspace`",
                is_final=True,
            )
        part = PurePosixPath(self._host.workspace, "files", f"{shipped.name}.part")
        try:
            async with self._connection.start_sftp_client() as sftp:
                await _copy(sftp, shipped, part)
        except asyncssh.SFTPError as error:
            raise HostError(
                f"cannot copy {shipped.folder.name} ({error.reason}): is its disk full?",
                is_final=True,
            ) from None
        except asyncssh.ChannelOpenError:
            raise HostError(
                f"cannot copy {shipped.folder.name}: it offers no SFTP; put `Subsystem sftp "
                "internal-sftp` into its sshd_config",
                is_final=True,
            ) from None
        self._send(check=shipped.name, files=dict(shipped.hashes))
        if wrong := (await self._receive())["wrong"]:
            raise HostError(f"{wrong[0]} arrived damaged", is_final=False)

    async def work(self, contact_port: int, port: int, names: Mapping[str, str]) -> None:
        """Has the worker work, until it ends.

        contact_port: of this machine, where the scheduler reaches the worker. port: the worker's.
        names: what tasks call a copied folder -> its name.

        Raises:
            HostError: It ended, with what it said.
        """
        assert self._process is not None
        connection, local = self._connection, "127.0.0.1"
        back = await connection.forward_remote_port(local, 0, local, self._start.scheduler_port)
        there = await connection.forward_local_port(local, contact_port, local, port)
        self._send(
            start={
                "scheduler": f"tls://{local}:{back.get_port()}",
                "contact": f"tls://{local}:{contact_port}",
                "name": self._host.label,
                "tls": dict(self._start.tls),
                "names": dict(names),
            }
        )
        try:
            ended = await self._ended()
        finally:
            there.close()
            back.close()
        raise ended

    def _send(self, **message: Any) -> None:
        assert self._process is not None
        with suppress(BrokenPipeError, ConnectionError):
            self._process.stdin.write(json.dumps(message) + "\n")

    async def _receive(self) -> dict[str, Any]:
        assert self._process is not None
        try:
            line = await self._process.stdout.readline()
            if line.endswith("\n") and len(line) < _MAX_LINE:
                answer = json.loads(line)
                if isinstance(answer, dict):
                    return answer
                raise ValueError
        except (ValueError, asyncssh.Error, OSError):
            raise HostError(
                f"its worker answers what no worker says: {line[:80]!r}", True
            ) from None
        raise await self._ended()

    async def _ended(self) -> HostError:
        """Returns how the worker ended, once it has."""
        assert self._process is not None
        said = await self._process.stderr.read()
        await self._process.wait_closed()
        status, number = self._process.exit_status, self._process.exit_signal
        last = next((line for line in reversed(said.splitlines()) if line.strip()), "no message")
        if status == 127 or "No module named" in last:
            return HostError(
                f"there is no edgedec for {self._host.python} ({last.strip()}): run "
                "`edgedec fleet doctor FLEET --install FOLDER`",
                is_final=True,
            )
        if status is None and number is None:
            return HostError("the connection was lost", is_final=False)
        how = f"signal {number[0]}" if number else f"exit code {status}"
        return HostError(f"its worker ended with {how} ({last.strip()[:200]})", is_final=False)


def worker_command(host: Host) -> str:
    """Returns the shell command that starts a worker in the host's workspace."""
    place, python = shell_path(host.workspace), shell_path(host.python)
    return f"mkdir -p {place}/files && cd {place} && exec {python} -m {_MODULE}"


def shell_path(path: str) -> str:
    """Returns a path for a shell; paths that are not absolute begin at the user's home."""
    return shlex.quote(path) if path.startswith("/") else f'"$HOME"/{shlex.quote(path)}'


async def _copy(sftp: asyncssh.SFTPClient, shipped: Shipped, part: PurePosixPath) -> None:
    for path in shipped.hashes:
        target = part / path
        await sftp.makedirs(str(target.parent), exist_ok=True)
        await sftp.put(str(shipped.folder / path), str(target))
