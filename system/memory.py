"""Memory: what the machine has, and pages of it."""

from __future__ import annotations

import mmap
import os
import re
import sys
from pathlib import Path

from edgedec.system import _linux, _windows


def memory_bytes() -> tuple[int, int | None]:
    """Returns installed and, if it is known, available memory. Units: bytes."""
    if sys.platform == "win32":
        return _windows.memory()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    facts = _linux.text(Path("/proc/meminfo"))
    found = re.search(r"^MemAvailable:\s+(\d+) kB", facts, re.MULTILINE)
    return total, int(found[1]) * 1024 if found else None


def zeroed_pages(n_bytes: int) -> mmap.mmap:
    """Returns memory that takes room only where it is written to.

    Huge pages are declined: each place that is written to would take 2 MB.

    Raises:
        OSError: There are not that many addresses.
        OverflowError: As above.
    """
    pages = mmap.mmap(-1, n_bytes)
    if sys.platform == "linux":
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return pages


def release_pages(mapped: mmap.mmap) -> None:
    """Lets the system take back every page of a mapped file that was read so far."""
    if sys.platform != "win32":
        mapped.madvise(mmap.MADV_DONTNEED)
