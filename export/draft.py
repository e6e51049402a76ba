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

MODEL_FOLDER = "target"
GRAPH_NAME = "model.onnx"


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
class Draft:
    """What the phases of an export pass on.

    report: called with bytes done and bytes in all of the current phase.
    """

    config: ExportConfig
    published: Published
    folder: Path
    report: Callable[[int, int], None] = lambda done, total: None
    entry: ModelEntry | None = None
    tensors: tuple[TensorError, ...] = ()
    verification: dict[str, Any] = field(default_factory=dict)
    manifest: BundleManifest | None = None

    @property
    def model_folder(self) -> Path:
        return self.folder / MODEL_FOLDER


@dataclass(frozen=True)
class ExportReport:
    """What an export did. tensors: errors of quantisation, the worst first."""

    bundle: Path
    manifest: BundleManifest
    tensors: tuple[TensorError, ...]
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
            "tensors": [dataclasses.asdict(tensor) for tensor in self.tensors],
        }


def read(draft: Draft) -> None:
    """The tokenizer, the chat template and the stop tokens, as published."""
    _write(draft.folder / "tokenizer.json", draft.published.tokenizer_json())
    if (template := draft.published.chat_template()) is not None:
        _write(draft.folder / "chat_template.jinja", template)
    special = draft.published.special
    settings = {"bos_token_id": special.bos_id, "eos_token_id": list(special.eos_ids)}
    _write(draft.folder / "generation_config.json", json.dumps(settings, indent=2))
    draft.model_folder.mkdir()


def seal(draft: Draft) -> None:
    """Hashes and the manifest. Renaming the folder is the last act of the export."""
    n_bytes = sum(path.stat().st_size for path in draft.folder.rglob("*") if path.is_file())
    done = 0

    def on_bytes(n_read: int) -> None:
        nonlocal done
        done += n_read
        draft.report(done, n_bytes)

    draft.manifest = _manifest(draft, hash_files(draft.folder, on_bytes))
    write_manifest(draft.folder, draft.manifest)


def _manifest(draft: Draft, files: dict[str, FileEntry]) -> BundleManifest:
    assert draft.entry is not None
    special = draft.published.special
    return BundleManifest(
        schema_version=SCHEMA_VERSION,
        name=draft.published.name,
        licence=draft.published.licence,
        edgedec_version=metadata.version("edgedec"),
        device_target=draft.config.device_target,
        quantization=draft.config.quantization,
        models={"target": draft.entry},
        files=files,
        stop_token_ids=special.eos_ids,
        bos_token_id=special.bos_id,
        add_bos=special.add_bos,
        defaults={"method": "plain"},
        verification=draft.verification,
    )


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
