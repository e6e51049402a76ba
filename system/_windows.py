"""What Windows' own libraries report. Callers check the system first; parsers run anywhere."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from ctypes import byref, c_uint32, c_uint64, c_void_p
from typing import Any

_CORES = 0  # RelationProcessorCore
_GROUP_BITS = 64
_LOCK_AT = 1 << 62
"""Byte that locks lie on: locked bytes cannot be read by others, and no file is so long."""

_EXCLUSIVE = 2  # LOCKFILE_EXCLUSIVE_LOCK
_SYNCHRONIZE = 0x100000
_ACCESS_DENIED = 5  # ERROR_ACCESS_DENIED
_BELOW_NORMAL = 0x4000  # BELOW_NORMAL_PRIORITY_CLASS


class _Overlapped(ctypes.Structure):
    _fields_ = (
        ("internal", c_void_p),
        ("internal_high", c_void_p),
        ("offset", c_uint32),
        ("offset_high", c_uint32),
        ("event", c_void_p),
    )


class _MemoryCounters(ctypes.Structure):
    _fields_ = (
        ("size", c_uint32),
        ("n_faults", c_uint32),
        ("peak_working_set", ctypes.c_size_t),
        ("others", ctypes.c_size_t * 7),
    )


class _MemoryStatus(ctypes.Structure):
    _fields_ = (
        ("size", c_uint32),
        ("load", c_uint32),
        ("total", c_uint64),
        ("available", c_uint64),
        ("others", c_uint64 * 5),
    )


class _PowerStatus(ctypes.Structure):
    _fields_ = (
        ("is_plugged_in", ctypes.c_ubyte),  # 255: unknown
        ("others", ctypes.c_ubyte * 3),
        ("times", c_uint32 * 2),
    )


def kernel32() -> Any:
    """Returns Windows' library of the kernel's calls."""
    library = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    library.GetCurrentProcess.restype = c_void_p
    library.GetCurrentThread.restype = c_void_p
    return library


def allowed_processors() -> list[int]:
    """Returns the processors that this process may run on, of the first 64."""
    system, process_mask = c_uint64(), c_uint64()
    library = kernel32()
    library.GetProcessAffinityMask(
        c_void_p(library.GetCurrentProcess()), byref(process_mask), byref(system)
    )
    return list(_bits(process_mask.value))


def set_thread_processors(processors: list[int]) -> list[int]:
    """Keeps the calling thread on ``processors``; returns where it was kept before."""
    library = kernel32()
    library.SetThreadAffinityMask.restype = c_uint64
    mask = sum(1 << processor for processor in processors)
    before = library.SetThreadAffinityMask(c_void_p(library.GetCurrentThread()), c_uint64(mask))
    return list(_bits(before))


def cores() -> list[tuple[int, tuple[int, ...]]]:
    """Returns the cores as `parsed_cores`; none if Windows does not tell."""
    library, n_bytes = kernel32(), c_uint32()
    library.GetLogicalProcessorInformationEx(_CORES, None, byref(n_bytes))
    buffer = ctypes.create_string_buffer(n_bytes.value)
    if not library.GetLogicalProcessorInformationEx(_CORES, buffer, byref(n_bytes)):
        return []
    return parsed_cores(buffer.raw[: n_bytes.value])


def parsed_cores(records: bytes) -> list[tuple[int, tuple[int, ...]]]:
    """Returns the efficiency class, higher for faster, and the processors of each core.

    Source: winnt.h, SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX and PROCESSOR_RELATIONSHIP.
    """
    cores, at = [], 0
    while at + 8 <= len(records):
        kind, size = struct.unpack_from("<II", records, at)
        if kind == _CORES:
            (rank,) = struct.unpack_from("<B", records, at + 9)
            (n_groups,) = struct.unpack_from("<H", records, at + 30)
            processors: list[int] = []
            for i in range(n_groups):
                mask, group = struct.unpack_from("<QH", records, at + 32 + 16 * i)
                processors += [_GROUP_BITS * group + bit for bit in _bits(mask)]
            cores.append((rank, tuple(processors)))
        at += max(size, 8)
    return cores


def lock(handle: int, is_shared: bool) -> None:
    """Waits for a lock on an open file. Raises: OSError."""
    place = _Overlapped(offset=_LOCK_AT & 0xFFFFFFFF, offset_high=_LOCK_AT >> 32)
    flags = 0 if is_shared else _EXCLUSIVE
    if not kernel32().LockFileEx(c_void_p(handle), flags, 0, 1, 0, byref(place)):
        raise ctypes.WinError(ctypes.get_last_error())  # type: ignore[attr-defined]


def peak_rss() -> int:
    """Returns the most memory this process has had resident. Units: bytes."""
    library, counters = kernel32(), _MemoryCounters(ctypes.sizeof(_MemoryCounters))
    process = c_void_p(library.GetCurrentProcess())
    library.K32GetProcessMemoryInfo(process, byref(counters), counters.size)
    return int(counters.peak_working_set)


def memory() -> tuple[int, int]:
    """Returns installed and available memory. Units: bytes."""
    status = _MemoryStatus(ctypes.sizeof(_MemoryStatus))
    kernel32().GlobalMemoryStatusEx(byref(status))
    return status.total, status.available


def is_on_battery() -> bool:
    """Returns whether the machine is not plugged in; False if Windows does not tell."""
    status = _PowerStatus(255)
    kernel32().GetSystemPowerStatus(byref(status))
    return bool(status.is_plugged_in == 0)


def is_running(pid: int) -> bool:
    """Says whether the process has not ended; also where we may not ask."""
    library = kernel32()
    handle = library.OpenProcess(_SYNCHRONIZE, False, pid)
    if not handle:
        code: int = ctypes.get_last_error()  # type: ignore[attr-defined]
        return code == _ACCESS_DENIED
    try:
        return bool(library.WaitForSingleObject(c_void_p(handle), 0) != 0)
    finally:
        library.CloseHandle(c_void_p(handle))


def lower_priority() -> None:
    """Lets processes of normal priority compute first."""
    library = kernel32()
    library.SetPriorityClass(c_void_p(library.GetCurrentProcess()), _BELOW_NORMAL)


def processor_name() -> str:
    """Returns what the processor is called, by the registry; empty if it does not say."""
    import winreg

    place = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, place) as key:  # type: ignore[attr-defined]
            return str(winreg.QueryValueEx(key, "ProcessorNameString")[0]).strip()  # type: ignore[attr-defined]
    except OSError:
        return ""


def _bits(mask: int) -> Iterator[int]:
    return (bit for bit in range(_GROUP_BITS) if mask >> bit & 1)
