"""What a device offers to an exported model, as data."""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.models.errors import ConfigError
from edgedec.models.manifest import GraphKind
from edgedec.models.quant import FORMATS


@dataclass(frozen=True)
class DeviceTarget:
    """One way to lay out a bundle for a device.

    graph_kind: the graph its runtime executes. weight_formats: formats its matrices may keep;
    any other is stored as float32. panel_rows: output channels side by side in a packed matrix
    (0: weights are stored plain). page_bytes: alignment of a tensor in the weight file, so that
    it can be mapped alone.
    """

    name: str
    summary: str
    graph_kind: GraphKind
    weight_formats: tuple[str, ...]
    panel_rows: int
    page_bytes: int

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.weight_formats) - set(FORMATS)):
            raise ConfigError(f"device target {self.name}: unknown weight format {unknown[0]!r}")

    def keeps(self, format_name: str) -> bool:
        """Whether matrices stay in ``format_name`` on this device."""
        return format_name in self.weight_formats
