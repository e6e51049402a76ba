"""Machines that bundles bring kernels for, as data."""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.models.errors import ConfigError
from edgedec.models.fields import shown


@dataclass(frozen=True)
class Triple:
    """Processor and system. compilers: of C++, the first that is there builds the kernels.

    package: of Debian, that brings the first one.
    """

    name: str
    processor: str
    compilers: tuple[str, ...]
    package: str


TRIPLES = {
    triple.name: triple
    for triple in (
        Triple("aarch64-linux-gnu", "aarch64", ("aarch64-linux-gnu-g++",), "g++-aarch64-linux-gnu"),
        Triple("x86_64-linux-gnu", "x86_64", ("x86_64-linux-gnu-g++",), "g++-x86-64-linux-gnu"),
    )
}
"""By name, as contracts and compilers write it."""


def find_triple(name: str) -> Triple:
    """Returns the machine called ``name``; an unknown name is a ConfigError."""
    if name not in TRIPLES:
        raise ConfigError(f"triple is {shown(name)}, expected one of {', '.join(TRIPLES)}")
    return TRIPLES[name]
