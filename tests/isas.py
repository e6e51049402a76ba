"""Instruction sets as parameters of tests."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet

from edgedec.kernels import cpu, library

ISAS = ("avx512vnni", "avxvnni", "avx2", "neoni8mm", "neondot", "scalar")


def isa_params(names: Iterable[str]) -> list[ParameterSet]:
    """Returns a parameter for each instruction set, marked `skip` if this machine lacks it."""
    here = cpu.available_isas() if library.has_library() else ()
    return [
        pytest.param(name, marks=() if name in here else pytest.mark.skip(f"no {name} here"))
        for name in names
    ]
