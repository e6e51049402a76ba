"""One model on its way into a bundle: what its phases pass on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgedec.export.checkpoints.checkpoint import Published
from edgedec.export.checkpoints.sentence_files import PublishedEmbedding
from edgedec.export.config import ExportConfig
from edgedec.export.quantising.quantise import TensorError
from edgedec.models.draft_heads import HeadEntry
from edgedec.models.model_entry import ModelEntry
from edgedec.targets import DeviceTarget

Phases = tuple[tuple[str, Callable[[Any], None]], ...]
"""Names, and functions that each fill in their part of a model."""


@dataclass(kw_only=True)
class ModelExport:
    """What the phases of one model pass on.

    kind: one of `MODEL_KINDS`; also the model's name in the bundle, and the folder of its files.
    bundle_folder: folder of the whole bundle; the model's own is below it.
    report: called with bytes done and bytes in all of the current phase.
    calibration: what quantising on a text cost. lora: how much adapters changed each matrix. head:
    of its early exits, or one that drafts, if it has some; for the model that is being sealed.
    left_out: what of the checkpoint the bundle does not get, and why. weights: how many were looked
    at. notes: what the bundle got or did not get unasked, a line each. warnings: what may be wrong
    with it, likewise. embedding: how texts become vectors, of an embedding model.
    """

    kind: str
    config: ExportConfig
    published: Published
    bundle_folder: Path
    report: Callable[[int, int], None] = lambda done, total: None
    entry: ModelEntry | None = None
    tensors: tuple[TensorError, ...] = ()
    verification: dict[str, Any] = field(default_factory=dict)
    calibration: dict[str, Any] = field(default_factory=dict)
    lora: dict[str, float] = field(default_factory=dict)
    head: HeadEntry | None = None
    left_out: str = ""
    weights: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    embedding: PublishedEmbedding | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Folder of the model's files."""
        return self.bundle_folder / self.kind

    @property
    def device(self) -> DeviceTarget:
        """What the bundle is made for."""
        return self.config.device_of(self.kind)

    @property
    def compiler(self) -> str:
        """Who makes its graph."""
        return self.config.compiler_of(self.kind)

    def listed(self, name: str) -> str:
        """Returns what the manifest calls the file ``name`` of the model."""
        return f"{self.kind}/{name}"
