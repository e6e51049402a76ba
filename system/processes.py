"""Other processes: started apart from ours, ended with all they started; forks and priorities."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any

APART: dict[str, Any] = {"start_new_session": True}
"""Options of `subprocess.Popen`: the process leads a group that `end_group` ends."""


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a process that was started with `APART` and all that are left of its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def step_back(niceness: int) -> None:
    """Lets other processes compute before this one."""
    os.nice(niceness)


def after_fork_in_child(function: Callable[[], None]) -> None:
    """Has ``function`` called in every process that is forked from this one."""
    os.register_at_fork(after_in_child=function)
