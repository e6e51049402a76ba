"""The standard streams: opened, redirected, held back."""

from __future__ import annotations

import ctypes
import errno
import io
import os
import select
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache


def open_streams() -> None:
    """Opens the standard streams that the program was started without.

    Otherwise the next file to be opened would get their number. Reading finds the end at once,
    standard error leads nowhere, and writing to standard output fails, as it should.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            mode = "r" if name == "stdin" else "w"
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
    if sys.platform == "win32":  # whose pipes and files would get the encoding of a code page
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(encoding="utf-8")
    # A file's name need not be text: it is written as JSON has it, as standard error does already.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def has_input(descriptor: int, patience_s: float) -> bool:
    """Says whether something can be read, or the end was reached, within ``patience_s``.

    On Windows, whose pipes cannot be asked, it is always taken for granted.
    """
    if sys.platform == "win32":
        return True
    return bool(select.select([descriptor], [], [], patience_s)[0])


def is_reader_gone(error: BaseException) -> bool:
    """Returns whether an error of writing to a pipe means that nobody reads it any more."""
    if isinstance(error, BrokenPipeError):
        return True
    return (
        sys.platform == "win32"
        and isinstance(error, OSError)
        and error.errno == errno.EINVAL  # what Windows makes of ERROR_NO_DATA
        and error.filename is None
    )


def silence_stdout() -> None:
    """Points standard output nowhere after its reader went away, so that exit stays quiet."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def claim_stdout() -> int:
    """Returns a descriptor of standard output; what else is printed there goes to standard error.

    For programs whose standard output is a protocol.
    """
    out = os.dup(1)
    os.dup2(2, 1)
    return out


@contextmanager
def stdout_on_stderr() -> Iterator[None]:
    """Sends what C libraries write to standard output to standard error."""
    libc = ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None)
    libc.fflush(None)
    kept = claim_stdout()
    try:
        yield
    finally:
        libc.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)


class HeldStderr:
    """Holds back what is written to standard error, by C libraries too. One at a time."""

    def __init__(self) -> None:
        """Begins."""
        self._held = _held_back()
        self._stderr: int | None = None  # where it led; None if it is closed
        with suppress(OSError):
            self._stderr = os.dup(2)
            os.dup2(self._held, 2)

    def end(self, *, is_dropped: bool) -> None:
        """Writes what was held back, unless it is dropped."""
        if self._stderr is None:
            return
        os.dup2(self._stderr, 2)
        os.close(self._stderr)
        n_bytes = os.fstat(self._held).st_size
        if not n_bytes:
            return
        os.lseek(self._held, 0, os.SEEK_SET)
        printed = os.read(self._held, n_bytes)
        os.ftruncate(self._held, 0)
        os.lseek(self._held, 0, os.SEEK_SET)
        if not is_dropped:
            with suppress(OSError):
                os.write(2, printed)


@cache
def _held_back() -> int:
    """Returns a file for what is printed, one for all calls: a call for every token is quick."""
    if sys.platform == "linux":
        return os.memfd_create("stderr")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
