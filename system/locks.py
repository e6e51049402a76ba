"""Locks between processes. They end with the process that holds them, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def lock_file(descriptor: int, *, is_shared: bool = False) -> None:
    """Waits for a lock on an open file, which holds until the descriptor is closed.

    is_shared: others may hold such locks, too.
    """
    fcntl.flock(descriptor, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX)


def lock_folder(folder: Path) -> int | None:
    """Returns the descriptor of an exclusive lock on ``folder``; None if it is taken.

    Closing the descriptor ends the lock.

    Raises:
        FileNotFoundError: There is no such folder.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
