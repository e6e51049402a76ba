"""What an export reports to its caller."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgedec.export.quantising.quantise import TensorError
from edgedec.models.manifest import BundleManifest


@dataclass(frozen=True)
class ExportReport:
    """What an export did.

    tensors: errors of quantisation by the model's name in the bundle, the worst first. phase_ms:
    how long each phase took. left_out: what of the checkpoint is not in the bundle, and why; empty
    if there is nothing to say. notes: what the bundle got or did not get unasked, a line each.
    warnings: what may be wrong with it, likewise.
    """

    bundle: Path
    manifest: BundleManifest
    tensors: dict[str, tuple[TensorError, ...]]
    phase_ms: dict[str, float]
    left_out: str = ""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def n_bytes(self) -> int:
        """Size of the bundle, without its manifest."""
        return sum(entry.n_bytes for entry in self.manifest.files.values())

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields."""
        return {
            "bundle": str(self.bundle),
            "name": self.manifest.name,
            "device_target": self.manifest.device_target,
            "quantization": self.manifest.quantization,
            "n_bytes": self.n_bytes,
            "phase_ms": self.phase_ms,
            "left_out": self.left_out,
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "verification": self.manifest.verification,
            "models": {name: self._model_dict(name) for name in self.manifest.models},
        }

    def _model_dict(self, name: str) -> dict[str, Any]:
        entry = self.manifest.models[name]
        return {
            "name": entry.name or self.manifest.name,
            "n_bytes": sum(self.manifest.files[path].n_bytes for path in entry.files),
            "trimmed_head_size": entry.config.trimmed_head_size,
            "kv_format": entry.contract.kv.format,
            "tensors": [dataclasses.asdict(tensor) for tensor in self.tensors[name]],
        }
