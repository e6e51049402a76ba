"""What a device offers to an exported model, as data."""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.models.errors import ConfigError
from edgedec.models.graph import ANY_TRIPLE, KV_FORMATS, KVFormat
from edgedec.models.quant import FORMATS


@dataclass(frozen=True)
class DeviceTarget:
    """One way to make a bundle for a device.

    compiler: module of `edgedec.export.compilers` that makes its graphs, unless one of
    ``other_compilers`` is asked for. weight_formats: formats its matrices may keep; any other is
    stored as float32. kv_formats: of its KV cache, the usual one first. triple: processor and
    system that compiled code is for, or ``any``. providers: of ONNX Runtime, the first that is
    there runs the graph, or devices of OpenVINO; none for other runtimes. usual_context: positions
    of its graphs where nobody says, at most; 0 for as many as the model was trained for.
    """

    name: str
    summary: str
    compiler: str
    weight_formats: tuple[str, ...]
    kv_formats: tuple[KVFormat, ...]
    triple: str = ANY_TRIPLE
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    other_compilers: tuple[str, ...] = ()
    usual_context: int = 0

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.weight_formats) - set(FORMATS)):
            raise ConfigError(f"device target {self.name}: unknown weight format {unknown[0]!r}")
        if not self.kv_formats or set(self.kv_formats) - set(KV_FORMATS):
            raise ConfigError(f"device target {self.name}: KV formats are {self.kv_formats}")

    def keeps(self, format_name: str) -> bool:
        """Whether matrices stay in ``format_name`` on this device."""
        return format_name in self.weight_formats
