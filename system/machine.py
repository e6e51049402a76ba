"""What this machine is: its processor, its caches, its system's name."""

from __future__ import annotations

import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from edgedec.system import _linux
from edgedec.system.processors import allowed_processors, processors

if sys.platform == "win32":
    from edgedec.system import _windows
elif sys.platform == "darwin":
    from edgedec.system import _macos

# Flags worth knowing for quantised matrix kernels, as /proc/cpuinfo spells them.
_NOTABLE_FLAGS = (
    "sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl",
    "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16",
    "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip


@dataclass(frozen=True)
class Cpu:
    """n_usable: logical cores this process may run on."""

    model: str
    architecture: str
    n_logical: int
    n_usable: int
    flags: tuple[str, ...]


def read_cpu() -> Cpu:
    """Returns what the operating system says of the processor."""
    info = _cpuinfo()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return Cpu(
        model=_processor_name() or info.get("model name") or "unknown",
        architecture=architecture(),
        n_logical=processors(),
        n_usable=len(allowed_processors()),
        flags=tuple(flag for flag in _NOTABLE_FLAGS if flag in flags),
    )


@dataclass(frozen=True)
class SharedCache:
    """A cache of the last level and the logical cores that share it."""

    level: int
    size_bytes: int
    processors: tuple[int, ...]


def machine_triple() -> str:
    """Returns the processor and system of this machine, as contracts name them."""
    system = {"linux": "linux-gnu", "darwin": "apple-darwin", "win32": "windows"}
    return f"{architecture().lower()}-{system.get(sys.platform, sys.platform)}"


def system_name() -> str:
    """Returns the name of the operating system: ``Linux``, ``Darwin``, ``Windows``."""
    return platform.system()


def architecture() -> str:
    """Returns the processor's instruction set, as compilers name it: ``x86_64``, ``aarch64``."""
    named = platform.machine()
    return {"AMD64": "x86_64", "ARM64": "aarch64"}.get(named, named)  # of Windows


def needs_display_server() -> bool:
    """Returns whether windows need a display server, which may be missing."""
    return sys.platform not in ("win32", "darwin")


def nvidia_driver() -> str:
    """Returns the name of the library of NVIDIA's driver."""
    return "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def last_caches(folder: Path = Path("/sys/devices/system/cpu")) -> tuple[SharedCache, ...]:
    """Returns the caches of the last level, each once; none where the system does not tell.

    Cores that share none exchange what both write through memory, or nearly so.
    """
    caches = set()
    for index in folder.glob("cpu[0-9]*/cache/index[0-9]*"):
        level, size = _linux.text(index / "level"), _linux.text(index / "size")
        processors = _linux.numbers(_linux.text(index / "shared_cpu_list"))
        if level.isdecimal() and processors:
            caches.add(SharedCache(int(level), _size_bytes(size), processors))
    last = max((cache.level for cache in caches), default=0)
    return tuple(sorted((c for c in caches if c.level == last), key=lambda cache: cache.processors))


def _size_bytes(text: str) -> int:
    """Returns what ``32K`` or ``36608K`` is; 0 for anything else."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else 0


def _cpuinfo() -> dict[str, str]:
    first = _linux.text(Path("/proc/cpuinfo")).partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _processor_name() -> str:
    if sys.platform == "win32":
        return _windows.processor_name()
    if sys.platform == "darwin":
        return _macos.sysctl("machdep.cpu.brand_string")
    return ""
