"""What the caller of an export decides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgedec.export.quantize import SCHEMES
from edgedec.models.errors import ConfigError
from edgedec.targets import device_target


@dataclass(frozen=True)
class ExportConfig:
    """One export.

    source: GGUF file, Hugging Face directory, hub id or catalogue name. quantization: ``keep``
    re-lays the checkpoint's own values; the others quantise every matrix in groups of 32,
    symmetric or with a minimum. context: most positions of the graph (None: as many as the model
    was trained for). hidden_layers: layers whose hidden states the graph returns. dump_passes:
    folder that receives the graph after each pass. is_overwrite_allowed: an existing bundle at
    ``destination`` may be replaced.
    """

    source: str
    destination: Path
    quantization: str = "keep"
    device_target: str = "cpu"
    context: int | None = None
    hidden_layers: tuple[int, ...] = ()
    dump_passes: Path | None = None
    is_overwrite_allowed: bool = False

    def __post_init__(self) -> None:
        if self.quantization not in SCHEMES:
            known = ", ".join(SCHEMES)
            raise ConfigError(f"unknown quantization {self.quantization!r}; known: {known}")
        device_target(self.device_target)
        if self.context is not None and self.context < 1:
            raise ConfigError(f"context is {self.context}, expected at least 1 position")
        if any(layer < 0 for layer in self.hidden_layers):
            raise ConfigError(f"hidden layers are {self.hidden_layers}, expected 0 or more")
