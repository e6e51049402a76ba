"""Runs programs that a model wrote, each in a process of its own that is held at arm's length.

`child.py` says what holds them. What does not: a program may read every file that
the user (or nobody, if the user is root) may read, though it cannot send or store what it read; it
may use its share of processor, memory and time; one that sets out to forge the verdict about
itself can, since it shares the interpreter with its test; and an error in the kernel or in Python
may let it out. Where the kernel has no filter, only resource limits and Python's own checks are
left, which hold accidents, not attacks: evaluate models you do not trust on a machine you can
afford to lose.
"""

from __future__ import annotations

import json
import math
import os
import queue
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgedec.system.processes import APART, end_group

_CHILD = Path(__file__).with_name("child.py")
_MAX_REPORT_BYTES = 1 << 16
_NEEDED = ("SYSTEMROOT",)  # without it, Windows starts no Python
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # so that a verdict does not depend on the run
    **{name: os.environ[name] for name in _NEEDED if name in os.environ},
}


@dataclass(frozen=True)
class Limits:
    """What a program may use.

    seconds: of wall time, and, rounded up, of CPU time. output_bytes: of all it prints.
    """

    seconds: float = 10.0
    memory_bytes: int = 512 << 20
    output_bytes: int = 1 << 20
    open_files: int = 32

    def resources(self) -> dict[str, int]:
        """Returns resource limits by their names in the `resource` module."""
        return {
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_CPU": math.ceil(self.seconds) + 1,
            "RLIMIT_FSIZE": 0,
            "RLIMIT_NPROC": 0,
            "RLIMIT_CORE": 0,
            "RLIMIT_NOFILE": self.open_files,
        }


@dataclass(frozen=True)
class Verdict:
    """What came of a program. reason: why it failed, None if it ran to its end.

    held_by: what kept it in; empty if it never reported.
    """

    reason: str | None
    held_by: tuple[str, ...] = ()

    @property
    def is_passed(self) -> bool:
        """It ran to its end."""
        return self.reason is None


def run_program(source: str, limits: Limits | None = None, is_filtered: bool = True) -> Verdict:
    """Returns what came of the Python program ``source``, which must run to its end to pass.

    is_filtered: False does without the kernel's filter, as where there is none.
    """
    limits = limits or Limits()
    token = secrets.token_hex(16)
    job = {
        "source": source,
        "token": token,
        "limits": limits.resources(),
        "is_filtered": is_filtered,
    }
    with tempfile.TemporaryDirectory(prefix="edgedec-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # another user may have to list it
        process = subprocess.Popen(
            [sys.executable, "-P", "-S", "-s", "-B", "-X", "utf8", str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=_ENVIRONMENT,
            **APART,
        )
        try:
            report, reason = _listen(process, json.dumps(job).encode(), limits)
        finally:
            _end(process)
    return _read_report(report, token, reason, process.returncode)


def is_contained() -> bool:
    """Returns whether this system holds programs that try to get out."""
    return sys.platform == "linux"


def _listen(
    process: subprocess.Popen[bytes], job: bytes, limits: Limits
) -> tuple[bytes, str | None]:
    """Returns what the process reported, and why it was not waited for, if so."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    deadline = time.monotonic() + limits.seconds
    with suppress(BrokenPipeError):  # it died already; there will be no report
        process.stdin.write(job)
        process.stdin.close()
    heard: dict[int, bytearray] = {0: bytearray(), 1: bytearray()}
    most = {0: _MAX_REPORT_BYTES, 1: 0}
    n_printed = 0
    pieces: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
    for i, pipe in enumerate((process.stdout, process.stderr)):
        descriptor = os.dup(
            pipe.fileno()
        )  # the pipe may be closed before the thread hears of its end
        threading.Thread(target=_pass_on, args=(descriptor, i, pieces), daemon=True).start()
    n_open = 2
    while n_open:
        try:
            i, data = pieces.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return b"", f"ran longer than {limits.seconds:g} s"
        n_open -= not data
        n_printed += len(data)
        heard[i] += data[: max(0, most[i] - len(heard[i]))]
        if n_printed > limits.output_bytes:
            return b"", f"printed more than {limits.output_bytes} bytes"
    return bytes(heard[0]), None


def _pass_on(pipe: int, number: int, pieces: queue.SimpleQueue[tuple[int, bytes]]) -> None:
    """Passes on what a pipe gives until it ends: not all systems wait for several pipes at once."""
    data = b"more"
    while data:
        data = os.read(pipe, 1 << 16)
        pieces.put((number, data))
    os.close(pipe)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills the process and all that are left of its group."""
    end_group(process)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


def _read_report(report: bytes, token: str, reason: str | None, code: int) -> Verdict:
    """Returns the verdict of a report; whatever does not bear the token is not believed."""
    if reason is not None:
        return Verdict(reason)
    for line in report.split(b"\n"):
        if line.startswith(token.encode()):
            with suppress(ValueError):
                fields: Any = json.loads(line[len(token) :])
                return Verdict(fields["reason"], tuple(fields["held_by"]))
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return Verdict(f"ended before the end of its test ({how})")
