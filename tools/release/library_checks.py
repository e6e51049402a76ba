"""What is wrong with the compiled kernels of a wheel.

The file is read, not loaded, so kernels for other systems are checked as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import lief
from platforms import GLIBC, MACOS, Platform

lief.logging.disable()  # it complains about Mach-O files that are in order

SOURCES = Path(__file__).resolve().parents[2] / "kernels/src"

LIBRARIES = {
    "Linux": r"(libc\.so\.6|libm\.so\.6|libpthread\.so\.0|libdl\.so\.2|ld-linux-[\w-]+\.so\.[12])",
    "Windows": r"(KERNEL32\.dll|api-ms-win-crt-[\w-]+\.dll)",
    "Darwin": r"/usr/lib/libSystem\.B\.dylib",
}
"""Libraries that every system of a kind has."""

FORMATS = {
    "Linux": lief.Binary.FORMATS.ELF,
    "Windows": lief.Binary.FORMATS.PE,
    "Darwin": lief.Binary.FORMATS.MACHO,
}
PROCESSORS = {
    "x86_64": lief.Header.ARCHITECTURES.X86_64,
    "AMD64": lief.Header.ARCHITECTURES.X86_64,
    "aarch64": lief.Header.ARCHITECTURES.ARM64,
    "ARM64": lief.Header.ARCHITECTURES.ARM64,
    "arm64": lief.Header.ARCHITECTURES.ARM64,
}
LINKERS_OWN = {"__mh_dylib_header", "___dso_handle"}
"""What linkers of Mach-O export in every library; nothing binds to it."""


def expected_exports() -> set[str]:
    """Returns the names that the sources export."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES.glob("*.cc"))
    declared = re.findall(r"^EDGEDEC_EXPORT .*?(\w+)\(", text, re.MULTILINE)
    header = (SOURCES / "kernels.h").read_text(encoding="utf-8")
    operators = re.search(r"#define EDK_OPERATORS\(X\)((?:.*\\\n)*.*\n)", header)
    assert operators is not None
    return {*declared, *(f"edgedec_{name}" for name in re.findall(r"X\((\w+),", operators[1]))}


def library_faults(data: bytes, platform: Platform) -> list[str]:
    """Returns a line for each thing that is wrong with the library of ``platform``'s wheel."""
    binary = lief.parse(data)
    if binary is None or binary.format != FORMATS[platform.system]:
        kind = "no library" if binary is None else binary.format.name
        return [f"got {kind}, expected {FORMATS[platform.system].name}"]
    kind = binary.abstract.header.architecture
    if kind != PROCESSORS[platform.processor]:
        return [f"got code for {kind.name}, expected {PROCESSORS[platform.processor].name}"]
    checks = {"Linux": elf_faults, "Windows": pe_faults, "Darwin": mach_o_faults}
    return [*isa_faults(data, platform), *checks[platform.system](binary)]


def isa_faults(data: bytes, platform: Platform) -> Iterator[str]:
    """Kernels that were left out: each instruction set's carry its name."""
    for isa in platform.isas:
        if isa.encode() + b"\0" not in data:
            yield f"has no kernels for {isa}"


def export_faults(exported: Iterable[str]) -> Iterator[str]:
    """Names that are missing, and others, which could replace those of the host process."""
    exports, expected = set(exported), expected_exports()
    if missing := sorted(expected - exports):
        yield f"does not export {', '.join(missing)}"
    if more := sorted(exports - expected):
        yield f"exports {', '.join(more)}"


def needed_faults(names: Iterable[str], system: str) -> Iterator[str]:
    """Libraries that a user's system may lack."""
    for name in names:
        if not re.fullmatch(LIBRARIES[system], name):
            yield f"needs {name}"


def elf_faults(binary: lief.ELF.Binary) -> Iterator[str]:
    """What is wrong with a library for Linux."""
    yield from export_faults(symbol.name for symbol in binary.dynamic_symbols if symbol.exported)
    yield from needed_faults(map(str, binary.libraries), "Linux")
    for symbol in binary.dynamic_symbols:
        if symbol.shndx != 0 or not symbol.name:  # defined here, or the empty first entry
            continue
        version = symbol.symbol_version
        auxiliary = version.symbol_version_auxiliary if version is not None else None
        if auxiliary is None:
            if symbol.binding != lief.ELF.Symbol.BINDING.WEAK:
                yield f"{symbol.name} is undefined"
        elif tuple(map(int, re.findall(r"\d+", auxiliary.name)))[:2] > GLIBC:
            yield f"{symbol.name} needs {auxiliary.name}, newer than {'.'.join(map(str, GLIBC))}"


def pe_faults(binary: lief.PE.Binary) -> Iterator[str]:
    """What is wrong with a library for Windows, whose linker leaves nothing undefined."""
    export = binary.get_export()
    yield from export_faults(entry.name for entry in export.entries if export is not None)
    yield from needed_faults((library.name for library in binary.imports), "Windows")


def mach_o_faults(binary: lief.MachO.Binary) -> Iterator[str]:
    """What is wrong with a library for macOS."""
    exported = {symbol.name for symbol in binary.exported_symbols} - LINKERS_OWN
    yield from export_faults(name.removeprefix("_") for name in exported)
    command_id = lief.MachO.LoadCommand.TYPE.ID_DYLIB
    needed = [library.name for library in binary.libraries if library.command != command_id]
    yield from needed_faults(needed, "Darwin")
    if binary.header.file_type != lief.MachO.Header.FILE_TYPE.DYLIB:
        yield f"is a {binary.header.file_type.name}, expected a DYLIB"
    if not binary.has_code_signature:
        yield "is not signed, not even ad hoc: Apple's processors refuse it"
    build = binary.build_version
    if build is None or tuple(build.minos[:2]) != MACOS:
        version = "no version" if build is None else ".".join(map(str, build.minos))
        yield f"needs macOS {version}, expected {'.'.join(map(str, MACOS))}"
    weak = lief.MachO.DyldBindingInfo.CLASS.WEAK  # the library has these itself
    for binding in binary.bindings:
        if binding.binding_class != weak and not binding.has_library:
            yield f"{binding.symbol.name} is undefined"
