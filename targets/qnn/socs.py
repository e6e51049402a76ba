"""Qualcomm's systems on a chip whose NPUs graphs are compiled for, as data."""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.models.errors import ConfigError
from edgedec.models.fields import shown


@dataclass(frozen=True)
class Soc:
    """One system on a chip.

    name: as users and Qualcomm write it. number: as Qualcomm's compiler does. arch: version of its
    NPU, the Hexagon Tensor Processor. sold_as: what its makers call it.
    """

    name: str
    number: int
    arch: int
    sold_as: str

    @property
    def has_blocks(self) -> bool:
        """Whether blocks of a matrix may have scales of their own."""
        return self.arch > 68

    @property
    def mark(self) -> bytes:
        """What a binary compiled for it says."""
        return f"soc_type={self.name};arch={self.arch};".encode()


SOCS = {
    soc.name: soc
    for soc in (
        Soc("SM8350", 30, 68, "Snapdragon 888"),
        Soc("SM8550", 43, 73, "Snapdragon 8 Gen 2"),
        Soc("SM8650", 57, 75, "Snapdragon 8 Gen 3"),
        Soc("SM8750", 69, 79, "Snapdragon 8 Elite"),
        Soc("SM8850", 87, 81, "Snapdragon 8 Elite Gen 5"),
    )
}
"""By name. Binaries for each of them were made and say so; none ran on such a device."""


def find_soc(name: str) -> Soc:
    """Returns the system on a chip called ``name``; an unknown name is a ConfigError."""
    if name not in SOCS:
        raise ConfigError(f"SoC is {shown(name)}, expected one of {', '.join(SOCS)}")
    return SOCS[name]
