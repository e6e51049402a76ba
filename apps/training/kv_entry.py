"""Puts fitted KV maps into a bundle."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from edgedec.apps.training.kv import Fitted
from edgedec.apps.tuning.report import write_manifest
from edgedec.export.kv_maps import write_kv_maps
from edgedec.models.bundle_files import FileEntry, file_sha256
from edgedec.models.kv_maps import KV_MAPS, KVMapsEntry
from edgedec.models.manifest import BundleManifest, fingerprint_of

_FOLDER = "auxiliary"


def write_maps(
    bundle: Path, manifest: BundleManifest, exit_layer: int, fitted: Fitted, corpus: str
) -> KVMapsEntry:
    """Writes maps and the manifest that names them; maps of earlier runs are removed afterwards."""
    target = manifest.target
    folder = bundle / _FOLDER
    folder.mkdir(exist_ok=True)
    # A name of its own: until the manifest is replaced, the bundle has the maps it had.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        stem = f"kv_{Path(scratch).name}"
        names = write_kv_maps(
            Path(scratch), stem, target.config, target.context, target.contract.kv.format,
            fitted.maps,
        )  # fmt: skip
        files = {f"{_FOLDER}/{name}": _entry(Path(scratch) / name) for name in names}
        for name in names:
            (Path(scratch) / name).replace(folder / name)
    graph, weights = files
    entry = KVMapsEntry(
        kind=KV_MAPS,
        model=fingerprint_of(manifest, manifest.target_name),
        exit_layer=exit_layer,
        graph=graph,
        weights=weights,
        kv_format=target.contract.kv.format,
        corpus=corpus,
        n_tokens=fitted.n_tokens,
        unexplained=round(fitted.unexplained, 4),
        held_out=round(fitted.held_out, 4),
    )
    old = {path for other in manifest.auxiliary.values() for path in other.files}
    kept = {path: e for path, e in manifest.files.items() if path not in old}
    write_manifest(
        bundle,
        dataclasses.replace(manifest, files={**kept, **files}, auxiliary={KV_MAPS: entry}),
    )
    for path in old:
        (bundle / path).unlink(missing_ok=True)
    return entry


def _entry(path: Path) -> FileEntry:
    return FileEntry(path.stat().st_size, file_sha256(path))
