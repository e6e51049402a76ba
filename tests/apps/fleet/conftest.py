"""Boards in this process: asyncssh's own server, which runs commands here and can be cut off."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh
import pytest


class _Gate(asyncssh.SSHServer):
    """Lets in who has the right key, and forwards ports, as sshd does."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._board.connections.append(conn)

    def connection_requested(self, *_: Any) -> bool:
        return True

    def server_requested(self, *_: Any) -> bool:
        return True


@dataclass
class Board:
    """A host that ssh reaches at ``127.0.0.1:port``."""

    name: str
    folder: Path
    keys: Path
    loop: asyncio.AbstractEventLoop
    host_key: asyncssh.SSHKey = field(
        default_factory=lambda: asyncssh.generate_private_key("ssh-ed25519")
    )
    port: int = 0
    connections: list[asyncssh.SSHServerConnection] = field(default_factory=list)
    n_commands: int = 0
    has_sftp: bool = True
    _programs: list[asyncio.subprocess.Process] = field(default_factory=list)
    _listener: asyncssh.SSHAcceptor | None = None

    def start(self) -> None:
        """Answers, at the same port as before."""
        self._in_loop(self._start())

    def vanish(self) -> None:
        """Ends every program and connection at once, and answers no more."""
        self._in_loop(self._vanish())

    def table(self, **more: str) -> str:
        """What `fleet.toml` says of it."""
        lines = {
            "ssh": f"tester@127.0.0.1:{self.port}",
            "python": sys.executable,
            "workspace": str(self.folder),
            **more,
        }
        return f"[hosts.{self.name}]\n" + "".join(f'{k} = "{v}"\n' for k, v in lines.items())

    def known(self) -> str:
        """Its line in known_hosts."""
        return f"[127.0.0.1]:{self.port} {self.host_key.export_public_key().decode()}"

    def _in_loop(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    async def _start(self) -> None:
        self._listener = await asyncssh.listen(
            "127.0.0.1",
            self.port,
            server_factory=lambda: _Gate(self),
            server_host_keys=[self.host_key],
            authorized_client_keys=str(self.keys),
            process_factory=self._run,
            sftp_factory=self.has_sftp,
            encoding=None,
        )
        self.port = self._listener.get_port()

    async def _run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        self.n_commands += 1
        program = await asyncio.create_subprocess_shell(
            process.command or "true",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.folder.parent,
            env={**os.environ, "HOME": str(self.folder.parent)},
            start_new_session=True,
        )
        self._programs.append(program)
        typing = asyncio.create_task(_pump(process.stdin, program.stdin))
        outputs = [
            asyncio.create_task(_pump(program.stdout, process.stdout)),
            asyncio.create_task(_pump(program.stderr, process.stderr)),
        ]
        code = await program.wait()
        await asyncio.gather(*outputs)
        typing.cancel()
        if code < 0:
            process.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
        else:
            process.exit(code)

    async def _vanish(self) -> None:
        assert self._listener is not None
        self._listener.close()
        await self._listener.wait_closed()
        for connection in self.connections:
            connection.abort()
        self.connections.clear()
        for program in self._programs:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(program.pid, signal.SIGKILL)
        await asyncio.gather(*(program.wait() for program in self._programs))
        self._programs.clear()


async def _pump(source: Any, sink: Any) -> None:
    """Writes all that is read; the end of what is read is the end of what is written."""
    with suppress(OSError, asyncssh.Error):
        while data := await source.read(1 << 16):
            sink.write(data)
        sink.write_eof()


MakeBoard = Callable[[str], Board]


@pytest.fixture
def make_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeBoard]:
    """Makes boards that the user of this home may log in to; their keys are known."""
    ssh = tmp_path / "home/.ssh"
    ssh.mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(str(ssh / "id_ed25519"))
    key.write_public_key(str(tmp_path / "authorized_keys"))
    (ssh / "known_hosts").touch()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    boards: list[Board] = []

    def make(name: str) -> Board:
        folder = tmp_path / name / "workspace"
        folder.parent.mkdir()
        board = Board(name, folder, tmp_path / "authorized_keys", loop)
        board.start()
        boards.append(board)
        with (ssh / "known_hosts").open("a") as known:
            known.write(board.known())
        return board

    yield make
    for board in boards:
        board.vanish()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
