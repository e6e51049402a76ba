"""What a fleet runs on a host: a Dask worker, spoken to over the pipes of its ssh session.

``python -m edgedec.apps.fleet.worker`` reads one JSON object a line and answers so. It ends with
its session: no process is left behind by a fleet that is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn

from edgedec.models.bundle_files import file_sha256
from edgedec.models.errors import EdgedecError
from edgedec.system.files import replace_text
from edgedec.system.locks import lock_folder
from edgedec.system.processes import ask_to_end
from edgedec.system.processors import stay_on

_HOLDER = "holder.json"
_TAKE_OVER_S = 10.0


class Channel:
    """JSON objects, one a line, between a worker and the fleet that started it."""

    def __init__(self, incoming: IO[str], outgoing: IO[str]) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    def receive(self) -> dict[str, Any] | None:
        """Returns what the fleet says next; None once it has gone away."""
        line = self._incoming.readline()
        return json.loads(line) if line.endswith("\n") else None

    def send(self, **message: Any) -> None:
        """Tells the fleet something."""
        self._outgoing.write(json.dumps(message) + "\n")
        self._outgoing.flush()


def main() -> NoReturn:
    """Serves one fleet, and ends."""
    channel = _own_pipes()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end(143))
    message = channel.receive()
    if message is None:
        sys.exit(0)
    try:
        code = _serve(channel, message)
    except EdgedecError as error:
        channel.send(refused=str(error))
        code = 1
    except OSError as error:
        channel.send(refused=f"{error.strerror or error} ({error.filename or 'no file'})")
        code = 1
    sys.exit(code)


def _own_pipes() -> Channel:
    """Returns the channel; what libraries print goes to standard error."""
    outgoing = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return Channel(sys.stdin, outgoing)


def end(code: int) -> NoReturn:
    """Ends this process now, and the programs that its tasks started."""
    if tasks := sys.modules.get("edgedec.apps.fleet.tasks"):
        tasks.stop_program()
    os._exit(code)


def _serve(channel: Channel, request: Mapping[str, Any]) -> int:
    os.environ |= request["environment"]
    if request["cores"]:
        _stay_on(request["cores"])
    workspace = Path.cwd()
    lock = _lock(workspace, request["run"], request["is_forced"])
    try:
        from edgedec.apps.fleet.hello import hello

        port = free_port()
        channel.send(hello={**hello(workspace), "port": port})
        while (message := channel.receive()) is not None:
            if "check" in message:
                channel.send(wrong=_take(workspace, message["check"], message["files"]))
            else:
                return asyncio.run(_work(channel, message["start"], port))
        return 0
    finally:
        if lock is not None:
            os.close(lock)


def _stay_on(cores: list[int]) -> None:
    try:
        stay_on(cores)
    except NotImplementedError:
        raise EdgedecError(
            "this system cannot keep a process on cores: leave out `cores`"
        ) from None
    except OSError as error:
        raise EdgedecError(f"cannot use the cores {cores}: {error.strerror}") from None


def _lock(workspace: Path, run: str, is_forced: bool) -> int | None:
    """Returns the lock on the workspace; None if another fleet has it and that is accepted."""
    ends_s = time.monotonic() + _TAKE_OVER_S
    while (lock := lock_folder(workspace)) is None:
        holder = _holder(workspace)
        if holder.get("run") != run:
            if is_forced:
                return None
            raise EdgedecError(
                f"another fleet has used it since {holder.get('since', 'a while ago')}: wait for "
                "that, or pass --force to measure beside it"
            )
        # A worker of ours whose connection broke and that has not noticed yet.
        ask_to_end(int(holder["pid"]))
        if time.monotonic() > ends_s:
            raise EdgedecError(f"an earlier worker of this fleet does not end: {holder}")
        time.sleep(0.1)
    since = time.strftime("%H:%M", time.gmtime()) + " UTC"
    replace_text(workspace / _HOLDER, json.dumps({"run": run, "pid": os.getpid(), "since": since}))
    return lock


def _holder(workspace: Path) -> dict[str, Any]:
    try:
        holder = json.loads((workspace / _HOLDER).read_text())
    except (OSError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _take(workspace: Path, name: str, files: Mapping[str, str]) -> list[str]:
    """Moves a copied folder to its place; returns the files that are not as they should be.

    files: the SHA-256 of each file, by its path in the folder.
    """
    part, place = workspace / "files" / f"{name}.part", workspace / "files" / name
    wrong = [path for path, digest in files.items() if not _is_whole(part / path, digest)]
    if not wrong:
        part.rename(place)
    return wrong


def _is_whole(path: Path, digest: str) -> bool:
    try:
        return file_sha256(path) == digest
    except EdgedecError:
        return False


async def _work(channel: Channel, start: Mapping[str, Any], port: int) -> int:
    """Works for a scheduler until it or the fleet goes away."""
    from distributed import Worker
    from distributed.security import Security

    from edgedec.apps.fleet.tasks import use_files

    use_files(Path.cwd(), start["names"])
    threading.Thread(target=_end_with, args=(channel,), daemon=True).start()
    tls = {f"tls_{role}_{kind}": start["tls"][kind] for role in ("client", "worker")
           for kind in ("key", "cert")}  # fmt: skip
    worker = Worker(
        start["scheduler"],
        name=start["name"],
        nthreads=1,
        host="127.0.0.1",
        port=port,
        protocol="tls",
        contact_address=start["contact"],
        security=Security(require_encryption=True, tls_ca_file=start["tls"]["cert"], **tls),
        local_directory=str(Path.cwd() / "dask"),
        memory_limit=0,
        dashboard=False,
    )
    async with worker:
        await worker.finished()
    return 0


def _end_with(channel: Channel) -> None:
    """Ends this process when the fleet does."""
    with suppress(OSError, ValueError):
        channel.receive()
    end(0)


def free_port() -> int:
    """Returns a port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


if __name__ == "__main__":
    main()
