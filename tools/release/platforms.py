"""The platforms that have a wheel, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Platform:
    """One wheel: what it is called, and what its library is compiled for.

    tag: the platform in the name of the wheel. target: as Zig names it, with the oldest C library
    or macOS that is served. system, processor: as CMake names them. isas: rows of the table in
    kernels/CMakeLists.txt.
    """

    tag: str
    target: str
    system: str
    processor: str
    library: str
    isas: tuple[str, ...]


X86_ISAS = ("scalar", "avx2", "avxvnni", "avx512vnni")
ARM_ISAS = ("scalar", "neondot", "neoni8mm")
ELF, PE, MACH_O = (f"libedgedec_kernels.{suffix}" for suffix in ("so", "dll", "dylib"))
GLIBC = (2, 28)
MACOS = (14, 0)

PLATFORMS = (
    Platform("manylinux_2_28_x86_64", "x86_64-linux-gnu.2.28", "Linux", "x86_64", ELF, X86_ISAS),
    Platform("manylinux_2_28_aarch64", "aarch64-linux-gnu.2.28", "Linux", "aarch64", ELF, ARM_ISAS),
    Platform("win_amd64", "x86_64-windows-gnu", "Windows", "AMD64", PE, X86_ISAS),
    Platform("win_arm64", "aarch64-windows-gnu", "Windows", "ARM64", PE, ARM_ISAS),
    Platform("macosx_14_0_arm64", "aarch64-macos.14.0", "Darwin", "arm64", MACH_O, ARM_ISAS),
)


def find_platform(tag: str) -> Platform:
    """Returns the platform of a wheel's tag; ValueError if no wheel is made for it."""
    for platform in PLATFORMS:
        if platform.tag == tag:
            return platform
    known = ", ".join(platform.tag for platform in PLATFORMS)
    raise ValueError(f"no wheel is made for {tag}: expected one of {known}")
