"""Memory: what the machine has, and pages of it."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import sys
from functools import cache
from pathlib import Path

from edgedec.system import _linux

if sys.platform == "win32":
    from edgedec.system import _windows

_MAP_NORESERVE = 0x4000
"""Of Linux; `mmap` has it from Python 3.13 on."""


def memory_bytes() -> tuple[int, int | None]:
    """Returns installed and, if it is known, available memory, as control groups limit it.

    Units: bytes.
    """
    if sys.platform == "win32":
        return _windows.memory()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    total = min(total, _linux.memory_limit() or total)
    facts = _linux.text(Path("/proc/meminfo"))
    match = re.search(r"^MemAvailable:\s+(\d+) kB", facts, re.MULTILINE)
    return total, min(total, int(match[1]) * 1024) if match else None


def free_memory_bytes() -> int:
    """Returns available memory; all there is where the system does not say what is available."""
    total, available = memory_bytes()
    return total if available is None else available


def zeroed_pages(n_bytes: int) -> mmap.mmap:
    """Returns memory that takes room only where it is written to.

    Huge pages are declined: each place that is written to would take 2 MB. On Linux a process may
    ask for more than there is memory, and a forked one has copies of its own.

    Raises:
        OSError: There are not that many addresses.
        OverflowError: As above.
    """
    if sys.platform != "linux":
        return mmap.mmap(-1, n_bytes)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    pages = mmap.mmap(-1, n_bytes, flags)
    pages.madvise(mmap.MADV_NOHUGEPAGE)
    return pages


def discard_pages(address: int, n_bytes: int) -> None:
    """Lets the system take back the whole pages of `zeroed_pages` in a range; they are lost.

    Does nothing where the system has no such call.
    """
    first, stop = -(-address // mmap.PAGESIZE), (address + n_bytes) // mmap.PAGESIZE
    if sys.platform == "linux" and first < stop:
        start, length = first * mmap.PAGESIZE, (stop - first) * mmap.PAGESIZE
        _libc().madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_DONTNEED)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def release_pages(mapped: mmap.mmap) -> None:
    """Lets the system take back every page of a mapped file that was read so far."""
    if sys.platform != "win32":
        mapped.madvise(mmap.MADV_DONTNEED)
