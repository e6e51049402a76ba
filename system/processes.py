"""Other processes: started apart from ours, ended with all they started; forks and priorities."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

if sys.platform == "win32":
    from edgedec.system import _windows


APART: dict[str, Any] = {"start_new_session": True}
"""Options of `subprocess.Popen`: the process leads a group that `end_group` ends."""

if sys.platform == "win32":
    APART = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a process that was started with `APART` and all that are left of its group."""
    if sys.platform == "win32":
        command = ["taskkill", "/F", "/T", "/PID", str(process.pid)]
        with suppress(OSError):
            subprocess.run(command, capture_output=True, check=False, **APART)
    else:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    with suppress(PermissionError):  # Windows refuses it where the process has ended
        process.kill()
    process.wait()


def ask_to_end(pid: int) -> None:
    """Asks a process, which need not be ours, to end; Windows ends it at once."""
    with suppress(OSError):
        os.kill(pid, signal.SIGTERM)


def is_running(pid: int) -> bool:
    """Says whether there is a process of this number, ours or not."""
    if sys.platform == "win32":
        return _windows.is_running(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def environment(pid: int) -> dict[str, str]:
    """Returns what a process began with; nothing if it is hidden, and on systems without /proc."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (variable.decode(errors="replace").partition("=") for variable in variables)
    return {name: value for name, _, value in pairs if name}


def user_id() -> int:
    """Returns the number of the user who runs this process; -1 on Windows, which has none."""
    if sys.platform == "win32":
        return -1
    return os.getuid()


def step_back(niceness: int) -> None:
    """Lets other processes compute before this one. niceness: on systems that have degrees."""
    if sys.platform == "win32":
        _windows.lower_priority()
    else:
        os.nice(niceness)


def after_fork_in_child(function: Callable[[], None]) -> None:
    """Has ``function`` called in every process that is forked from this one."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=function)
