"""A model whose family has a recipe, on its way into a bundle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgedec.export.checkpoints.checkpoint import Checkpoint
from edgedec.export.heads.head_file import HeadFile
from edgedec.export.heads.head_folder import HeadFolder
from edgedec.export.phases.model_export import ModelExport
from edgedec.models.model_entry import TARGET_MODEL
from edgedec.models.quant import QuantFormat

ENCODER_NAME = "encoder.onnx"
"""File of an encoder's graph."""


@dataclass(kw_only=True)
class RecipeModel(ModelExport):
    """What the phases of a model with a recipe pass on.

    context: positions of the graph. formats: of every matrix. graph: whatever the phases of the
    compiler hand to each other. encoder: that of the encoder, if there is one. head_file: the draft
    head that was asked for. shipped_heads: those of which it gets the one that fits, if there is
    one. published_head: a publisher's that was asked for. draft_layer: where its publisher's layer
    for drafting is, if it gets that.
    """

    source: Checkpoint
    quantization: str
    hidden_layers: tuple[int, ...] = ()
    context: int = 0
    formats: dict[str, QuantFormat] = field(default_factory=dict)
    graph: Any = None
    encoder: Any = None
    head_file: HeadFile | None = None
    shipped_heads: tuple[HeadFile, ...] = ()
    published_head: HeadFolder | None = None
    draft_layer: Checkpoint | None = None

    @property
    def kv_format(self) -> str:
        """Format of the KV cache."""
        format_name, known = self.config.kv_format, self.device.kv_formats
        return format_name if format_name in known else known[0]

    @property
    def returned_layers(self) -> tuple[int, ...]:
        """Layers whose hidden states the graph returns where it always returns the last one's.

        Of a source, and of texts of an embedding model, there are none.
        """
        if self.source.config.encoder is not None or self.source.config.is_embedder:
            return ()
        return tuple(sorted({*self.hidden_layers, self.source.config.n_layers}))

    def dump(self, stem: str, write: Callable[[Path], None]) -> None:
        """Calls ``write`` with a path, if the caller asked for the graph after each pass.

        stem: of the file; ``write`` adds the suffix of its kind of graph.
        """
        folder = self.config.dump_passes
        if folder is None:
            return
        if self.kind != TARGET_MODEL:
            folder = folder / self.kind
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / stem)
