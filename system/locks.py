"""Locks between processes. They end with the process that holds them, however it ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    from edgedec.system import _windows
else:
    import fcntl


def lock_file(descriptor: int, *, is_shared: bool = False) -> None:
    """Waits for a lock on an open file, which holds until the descriptor is closed.

    is_shared: others may hold such locks, too.
    """
    if sys.platform == "win32":
        _windows.lock(msvcrt.get_osfhandle(descriptor), is_shared)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX)


def lock_folder(folder: Path) -> int | None:
    """Returns the descriptor of an exclusive lock on ``folder``; None if it is taken.

    Closing the descriptor ends the lock. Windows does not rename folders that hold open files, so
    there the lock is a file beside the folder, which goes when its descriptor does.

    Raises:
        FileNotFoundError: There is no such folder.
    """
    return _folder_lock(folder)


if sys.platform == "win32":

    def _folder_lock(folder: Path) -> int | None:
        if not folder.is_dir():
            raise FileNotFoundError(folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_TEMPORARY
        try:
            return os.open(folder.with_name(f"{folder.name}.lock"), flags)
        except OSError:
            return None

else:

    def _folder_lock(folder: Path) -> int | None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor
