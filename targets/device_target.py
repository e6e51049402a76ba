"""What a device offers to an exported model, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from edgedec.models.errors import ConfigError
from edgedec.models.fields import shown
from edgedec.models.graph import ANY_TRIPLE
from edgedec.models.kv_formats import KV_FORMATS
from edgedec.models.quant import FORMATS

PlaceOption = Literal["provider", "device"]
ChipOption = Literal["soc", "arch"]


@dataclass(frozen=True)
class Place:
    """Where a runtime can compute.

    name: as users write it. provider: as contracts of graphs do. needs: what brings it; empty if
    the device's extra does. memory: what the runtime calls the memory that its graphs compute in.
    """

    name: str
    provider: str
    needs: str = ""
    memory: str = "cpu"


@dataclass(frozen=True)
class DeviceTarget:
    """One way to make a bundle for a device.

    summary: for the help of ``--target``. compiler: makes its graphs, unless one of
    ``other_compilers`` is asked for. weight_formats: formats its matrices may keep; any other is
    stored as float32. kv_formats: of its KV cache, the usual one first. triple: processor and
    system that compiled code is for, or ``any``. usual_context: positions of its graphs where
    nobody says, at most; 0 for as many as the model was trained for. places: where its graphs can
    run, the usual one first; ``run_places.py`` says which are here. place_option: what chooses
    among them. chips: what a bundle can be made for -> what has it. chip_option: what chooses among
    those. needs_chip: the option has no default.
    """

    name: str
    summary: str
    compiler: str
    weight_formats: tuple[str, ...]
    kv_formats: tuple[str, ...]
    triple: str = ANY_TRIPLE
    other_compilers: tuple[str, ...] = ()
    usual_context: int = 0
    places: tuple[Place, ...] = ()
    place_option: PlaceOption | None = None
    chips: Mapping[str, str] = field(default_factory=dict)
    chip_option: ChipOption | None = None
    needs_chip: bool = False

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.weight_formats) - set(FORMATS)):
            raise ConfigError(f"device target {self.name}: unknown weight format {unknown[0]!r}")
        if not self.kv_formats or set(self.kv_formats) - set(KV_FORMATS):
            raise ConfigError(f"device target {self.name}: KV formats are {self.kv_formats}")

    @property
    def providers(self) -> tuple[str, ...]:
        """Its places, as contracts of graphs state them."""
        return tuple(place.provider for place in self.places)

    def keeps(self, format_name: str) -> bool:
        """Whether matrices stay in ``format_name`` on this device."""
        return format_name in self.weight_formats

    def place(self, name: str, option: str) -> Place:
        """Returns the place called ``name``; a ConfigError about ``option`` if there is none."""
        for place in self.places:
            if place.name == name:
                return place
        known = ", ".join(place.name for place in self.places)
        raise ConfigError(f"{option} is {shown(name)}, expected one of {known}")

    def place_of(self, provider: str) -> Place:
        """Returns the place that contracts call ``stated``; a ConfigError if there is none."""
        for place in self.places:
            if place.provider == provider:
                return place
        raise ConfigError(f"there is no {self.place_option} {shown(provider)} that edgedec knows")

    def check_chip(self, name: str) -> None:
        """Raises a ConfigError unless bundles can be made for the chip ``name``."""
        if name not in self.chips:
            known = self.chips_text()
            raise ConfigError(f"{self.chip_option} is {shown(name)}, expected one of {known}")

    def chips_text(self) -> str:
        """Returns the chips, each with what has it, for messages."""
        return ", ".join(f"{chip} ({has_it})" for chip, has_it in self.chips.items())
