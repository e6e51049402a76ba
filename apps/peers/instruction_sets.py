"""Which instruction set a peer's library was built for, named as edgedec's kernels are."""

from __future__ import annotations

import re

# Rising within a family, each with what llama.cpp's and ik_llama.cpp's system information calls it.
_FAMILIES = (
    (("avx", "AVX"), ("avx2", "AVX2"), ("avxvnni", "AVX_VNNI"), ("avx512", "AVX512"),
     ("avx512vnni", "AVX512_VNNI"), ("avx512amx", "AMX_INT8")),
    (("neon", "NEON"), ("neondot", "DOTPROD"), ("neoni8mm", "MATMUL_INT8")),
)  # fmt: skip


def instruction_set(system: str) -> str | None:
    """Returns the best instruction set that a library's system information names as in use.

    None if it names none, as for runtimes that say nothing of it.
    """
    used = {name for name, value in re.findall(r"(\w+) = (\d+)", system) if value != "0"}
    for family in _FAMILIES:
        if names := [name for name, flag in family if flag in used]:
            return names[-1]
    return None


def is_lesser(isa: str, ours: str) -> bool:
    """Returns whether ``isa`` is below ``ours`` in the same family."""
    for family in _FAMILIES:
        names = [name for name, _ in family]
        if isa in names and ours in names:
            return names.index(isa) < names.index(ours)
    return False
