"""Files and folders that are there whole or not at all, whatever happens to who writes them."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_SUFFIX = ".part"
_STALE_S = 3600.0
"""Age at which an unfinished file belongs to nobody any more."""

_PATIENCE_S, _LOOK_S = 2.0, 0.02
"""How long a file that a program has open is waited for, and how often it is looked at."""

_IN_USE = (5, 32, 33)  # ERROR_ACCESS_DENIED, ERROR_SHARING_VIOLATION, ERROR_LOCK_VIOLATION
_AT_FDCWD = -100 if sys.platform == "linux" else -2
_RENAME_SWAP = 2  # RENAME_EXCHANGE on Linux, RENAME_SWAP on macOS
_OPEN_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


@contextmanager
def replacing(
    path: Path, *, is_private: bool = False, is_durable: bool = False
) -> Iterator[IO[bytes]]:
    """Yields a file that takes the place of ``path`` at a clean exit; else nothing changes.

    What killed writers left behind is removed.

    is_private: its owner alone may read it; else whoever may read the file that it replaces. On
        Windows that is up to the folder: those of a user's profile are private.
    is_durable: it is on the disk before it takes its name, so that a power cut does not take both.

    Raises:
        OSError: The folder is missing or cannot be written, or the disk is full.
    """
    prefix = f".{path.name}."
    _remove_stale(path.parent, prefix)
    part = path.with_name(f"{prefix}{secrets.token_hex(4)}{_SUFFIX}")
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0)
    descriptor = os.open(part, flags, 0o600 if is_private else 0o666)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
        if not is_private and path.exists():
            part.chmod(path.stat().st_mode & 0o777)
        move_over(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    if is_durable:
        # The file has its name: were this to fail, only a power cut could still take that away.
        with suppress(OSError):
            sync(path.parent)


def read_text(path: Path) -> str:
    """Returns the text of a UTF-8 file: its line ends as they are, no byte order mark.

    Raises:
        OSError: The file cannot be read.
        UnicodeDecodeError: It is not UTF-8.
    """
    return path.read_bytes().decode("utf-8-sig")


_MARKS = ((b"\xff\xfe\0\0", "UTF-32"), (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))
"""What texts in other encodings begin with."""

_NO_TEXTS = (
    (b"PAR1", "a Parquet table", "write it as JSON lines, with pandas: "
     "read_parquet(FILE).to_json(NEW, orient='records', lines=True)"),
    (b"\x1f\x8b", "gzip data", "unpack it with gunzip"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data", "unpack it with unzstd"),
    (b"PK\x03\x04", "a ZIP archive or a spreadsheet", "unpack it, or save the sheet as CSV"),
)  # fmt: skip
"""What files begin with that are no texts, what they are, and what to do."""


def how_to_convert(error: UnicodeDecodeError) -> str:
    """Returns what is wrong with a text that is not UTF-8, and what makes it one."""
    for mark, kind, remedy in _NO_TEXTS:
        if error.object.startswith(mark):
            return f"it is {kind}; {remedy}"
    marked = (name for mark, name in _MARKS if error.object.startswith(mark))
    encoding = next(marked, "LATIN1")
    return f"{error}; if it is {encoding}, convert it: iconv -f {encoding} -t UTF-8"


def replace_text(path: Path, text: str, *, is_private: bool = False) -> None:
    """Writes ``text`` to a new file that takes the place of ``path``, as `replacing`."""
    with replacing(path, is_private=is_private) as file:
        file.write(text.encode())


def replace_json(path: Path, document: object) -> None:
    """Writes ``document`` in place of the file at ``path``, whose folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(document))


def _remove_stale(folder: Path, prefix: str) -> None:
    for left in folder.iterdir():
        if left.name.startswith(prefix) and left.name.endswith(_SUFFIX):
            with suppress(FileNotFoundError):  # another writer was faster
                if time.time() - left.lstat().st_mtime > _STALE_S:
                    left.unlink()


def move_over(source: Path, destination: Path) -> None:
    """Gives a file the name of another one, which is lost.

    Raises:
        OSError: Also if a program has the other one open, on Windows, for longer than a moment.
    """
    ends_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            source.replace(destination)
            return
        except OSError as error:
            if not is_open_elsewhere(error) or destination.is_dir() or time.monotonic() > ends_s:
                raise
        time.sleep(_LOOK_S)


def is_open_elsewhere(error: OSError) -> bool:
    """Returns whether an error means that a program has the file open: Windows keeps those."""
    return getattr(error, "winerror", None) in _IN_USE


def sync(path: Path) -> None:
    """Returns once a file, or the names in a folder, are on the disk."""
    if sys.platform == "win32" and path.is_dir():
        return  # Windows does not open folders, and writes names down by itself
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange(a: Path, b: Path) -> bool:
    """Exchanges two folders in one step; False if the system cannot."""
    if sys.platform == "win32":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    rename = getattr(libc, "renameat2" if sys.platform == "linux" else "renameatx_np", None)
    if rename is None:
        return False
    paths = (os.fsencode(a), os.fsencode(b))
    return bool(rename(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_SWAP) == 0)


def open_regular(path: Path, flags: int) -> int | None:
    """Returns the descriptor of a file, None if it is a folder, a pipe or a device.

    flags: of `os.open`.

    Raises:
        OSError: There is none, it is a symbolic link, or it may not be opened.
    """
    if sys.platform == "win32" and path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    descriptor = os.open(path, flags | _OPEN_FLAGS)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return descriptor


def is_private_folder(path: Path) -> bool:
    """Returns whether ``path`` is a folder that nobody but this user can look into.

    On Windows that is up to the folder above: those of a user's profile are private.
    """
    try:
        stats = path.lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(stats.st_mode):
        return False
    if sys.platform == "win32":
        return True
    return stats.st_uid == os.geteuid() and not stats.st_mode & 0o077


def read_at(descriptor: int, n_bytes: int, offset: int) -> bytes:
    """Returns at most ``n_bytes`` bytes of an open file, from ``offset`` on."""
    if sys.platform == "win32":
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, n_bytes)
    return os.pread(descriptor, n_bytes, offset)


def write_at(descriptor: int, content: bytes, offset: int) -> None:
    """Writes all of ``content`` to an open file, from ``offset`` on.

    Raises:
        OSError: The disk is full.
    """
    if sys.platform == "win32":
        os.lseek(descriptor, offset, os.SEEK_SET)
        n_written = os.write(descriptor, content)
    else:
        n_written = os.pwrite(descriptor, content, offset)
    if n_written < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_rate(path: Path, n_bytes: int = 1 << 25) -> float | None:
    """Returns how many bytes of a file the disk gives in a second; None where nobody can tell.

    The system forgets the middle of the file first, so that the disk is what reads it.
    """
    if sys.platform in ("win32", "darwin"):
        return None
    with path.open("rb", buffering=0) as file:
        start = max(0, (os.fstat(file.fileno()).st_size - n_bytes) // 2)
        os.posix_fadvise(file.fileno(), start, n_bytes, os.POSIX_FADV_DONTNEED)
        started_s = time.perf_counter()
        content = os.pread(file.fileno(), n_bytes, start)
        return len(content) / (time.perf_counter() - started_s)
