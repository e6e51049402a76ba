"""A bundle in the making, and the first and last steps that every kind of model shares."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from edgedec.export.bundle import hash_files, write_manifest
from edgedec.export.checkpoint import SpecialTokens
from edgedec.export.config import ExportConfig
from edgedec.export.quantize import TensorError
from edgedec.models.manifest import SCHEMA_VERSION, BundleManifest, FileEntry, ModelEntry

GRAPH_NAME = "model.onnx"
TOKENIZER_NAME = "tokenizer.json"
TARGET, DRAFT = "target", "draft"
"""Roles of models, and the folders of their files."""


class Published(Protocol):
    """What a model's publisher states besides its weights."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def licence(self) -> str | None:
        """The licence the publisher states."""

    @property
    def special(self) -> SpecialTokens:
        """The tokens that begin and end texts."""

    def tokenizer_json(self) -> str:
        """Returns the tokenizer in the format of the ``tokenizers`` library."""

    def chat_template(self) -> str | None:
        """Returns the Jinja template of conversations."""


@dataclass(kw_only=True)
class UnfinishedModel:
    """What the phases of one model pass on.

    bundle_folder: folder of the whole bundle; the model's own is below it.
    report: called with bytes done and bytes in all of the current phase.
    """

    role: str
    config: ExportConfig
    published: Published
    bundle_folder: Path
    report: Callable[[int, int], None] = lambda done, total: None
    entry: ModelEntry | None = None
    tensors: tuple[TensorError, ...] = ()
    verification: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Folder of the model's files."""
        return self.bundle_folder / self.role

    def listed(self, name: str) -> str:
        """Returns what the manifest calls the file ``name`` of the model."""
        return f"{self.role}/{name}"


@dataclass(frozen=True)
class ExportReport:
    """What an export did. tensors: errors of quantisation by role, the worst first."""

    bundle: Path
    manifest: BundleManifest
    tensors: dict[str, tuple[TensorError, ...]]
    phase_ms: dict[str, float]

    @property
    def n_bytes(self) -> int:
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
            "verification": self.manifest.verification,
            "models": {role: self._model_dict(role) for role in self.manifest.models},
        }

    def _model_dict(self, role: str) -> dict[str, Any]:
        entry = self.manifest.models[role]
        return {
            "name": entry.name or self.manifest.name,
            "n_bytes": sum(self.manifest.files[path].n_bytes for path in entry.files),
            "trimmed_head_size": entry.config.trimmed_head_size,
            "kv_format": entry.kv_format,
            "tensors": [dataclasses.asdict(tensor) for tensor in self.tensors[role]],
        }


def read_target(model: UnfinishedModel) -> None:
    """The tokenizer, the chat template and the stop tokens, as published."""
    folder, published = model.bundle_folder, model.published
    _write(folder / TOKENIZER_NAME, published.tokenizer_json())
    if (template := published.chat_template()) is not None:
        _write(folder / "chat_template.jinja", template)
    special = published.special
    settings = {"bos_token_id": special.bos_id, "eos_token_id": list(special.eos_ids)}
    _write(folder / "generation_config.json", json.dumps(settings, indent=2))
    model.folder.mkdir()


def read_draft(model: UnfinishedModel) -> None:
    """The tokenizer, where it is another than the target model's."""
    model.folder.mkdir()
    tokenizer = model.published.tokenizer_json()
    if tokenizer != (model.bundle_folder / TOKENIZER_NAME).read_text(encoding="utf-8"):
        _write(model.folder / TOKENIZER_NAME, tokenizer)


def seal(models: dict[str, UnfinishedModel], report: Callable[[int, int], None]) -> BundleManifest:
    """Writes hashes and the manifest, which is returned.

    Renaming the folder is the last act of the export.
    """
    folder = models[TARGET].bundle_folder
    n_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    done = 0

    def on_bytes(n_read: int) -> None:
        nonlocal done
        done += n_read
        report(done, n_bytes)

    manifest = _manifest(models, hash_files(folder, on_bytes))
    write_manifest(folder, manifest)
    return manifest


def _manifest(models: dict[str, UnfinishedModel], files: dict[str, FileEntry]) -> BundleManifest:
    target = models[TARGET]
    published = target.published
    verification = dict(target.verification)
    if DRAFT in models:
        verification[DRAFT] = models[DRAFT].verification
    is_foreign = _entry(target).graph_kind == "optimum"
    return BundleManifest(
        schema_version=SCHEMA_VERSION,
        name=published.name,
        licence=published.licence,
        edgedec_version=metadata.version("edgedec"),
        device_target=target.config.device_target,
        quantization=target.config.quantization,
        models={role: _entry(model) for role, model in models.items()},
        files=files,
        stop_token_ids=published.special.eos_ids,
        bos_token_id=published.special.bos_id,
        add_bos=published.special.add_bos,
        # Graphs of other exporters run no trees of drafts.
        defaults={"method": "plain" if is_foreign else "auto"},
        verification=verification,
    )


def _entry(model: UnfinishedModel) -> ModelEntry:
    assert model.entry is not None
    if model.role == TARGET:
        return model.entry
    published = model.published
    return dataclasses.replace(model.entry, name=published.name, licence=published.licence)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
