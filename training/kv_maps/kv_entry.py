"""Puts fitted KV maps into a bundle."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edgedec.export.manifest_change import change_manifest
from edgedec.models.bundle_files import FileEntry, file_sha256
from edgedec.models.errors import EdgedecError
from edgedec.models.kv_maps import (
    DRAFT_KV_MAPS,
    KV_MAPS,
    KVMapsEntry,
    MapsEntry,
    ModelKVMapsEntry,
)
from edgedec.models.manifest import BundleManifest, fingerprint_of
from edgedec.training.kv_maps.fit_maps import Fitted
from edgedec.training.kv_maps.kv_maps import write_kv_maps
from edgedec.training.kv_maps.model_kv import ModelFitted

_FOLDER = "auxiliary"


def write_own_maps(
    bundle: Path, manifest: BundleManifest, exit_layer: int, fitted: Fitted, corpus: str
) -> KVMapsEntry:
    """Writes maps from a model's first layers, and the manifest that names them."""
    files, facts = _written(bundle, manifest, manifest.target_name, fitted, corpus)
    entry = KVMapsEntry(kind=KV_MAPS, exit_layer=exit_layer, **facts)
    _name(bundle, manifest, entry, files)
    return entry


def write_draft_maps(
    bundle: Path, manifest: BundleManifest, draft: str, fitted: ModelFitted, corpus: str
) -> ModelKVMapsEntry:
    """Writes maps from the target model to ``draft``, and the manifest that names them."""
    files, facts = _written(bundle, manifest, draft, fitted, corpus)
    source = fingerprint_of(manifest, manifest.target_name)
    entry = ModelKVMapsEntry(kind=DRAFT_KV_MAPS, source=source, **facts)
    _name(bundle, manifest, entry, files)
    return entry


def _written(
    bundle: Path, manifest: BundleManifest, name: str, fitted: Fitted | ModelFitted, corpus: str
) -> tuple[dict[str, FileEntry], dict[str, Any]]:
    """Writes maps of the model ``name``; returns their files, and what all entries say."""
    model = manifest.models[name]
    kv_format = model.contract.kv.format
    scales = fitted.scales if isinstance(fitted, ModelFitted) else None
    folder = bundle / _FOLDER
    folder.mkdir(exist_ok=True)
    # A name of its own: until the manifest is replaced, the bundle has the maps it had.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        stem = f"kv_{Path(scratch).name}"
        names = write_kv_maps(Path(scratch), stem, model.config, kv_format, fitted.maps, scales)
        files = {f"{_FOLDER}/{name}": _entry(Path(scratch) / name) for name in names}
        for file_name in names:
            (Path(scratch) / file_name).replace(folder / file_name)
    graph, weights = files
    return files, {
        "model": fingerprint_of(manifest, name),
        "graph": graph,
        "weights": weights,
        "kv_format": kv_format,
        "corpus": corpus,
        "n_tokens": fitted.n_tokens,
        "unexplained": round(fitted.unexplained, 4),
        "held_out": round(fitted.held_out, 4),
    }


def _name(
    bundle: Path, manifest: BundleManifest, entry: MapsEntry, files: dict[str, FileEntry]
) -> None:
    """Writes the manifest with ``entry``; the maps of its kind are removed afterwards."""
    old: set[str] = set()

    def put(now: BundleManifest) -> BundleManifest:
        replaced = now.auxiliary.get(entry.kind)
        old.update(() if replaced is None else replaced.files)
        kept = {path: e for path, e in now.files.items() if path not in old}
        auxiliary = {**now.auxiliary, entry.kind: entry}
        return dataclasses.replace(now, files={**kept, **files}, auxiliary=auxiliary)

    try:
        change_manifest(bundle, manifest, put)
    except EdgedecError:
        _remove(bundle, files)  # which nothing names
        raise
    _remove(bundle, old)


def _remove(bundle: Path, paths: Iterable[str]) -> None:
    for path in paths:
        (bundle / path).unlink(missing_ok=True)


def _entry(path: Path) -> FileEntry:
    return FileEntry(path.stat().st_size, file_sha256(path))
