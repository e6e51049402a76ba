"""Bundles that differ from others in what was trained."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from edgedec.export.bundle import bundle_folder, write_manifest
from edgedec.models.bundle_files import FileEntry, file_sha256
from edgedec.models.manifest import BundleManifest


def put_variant(
    bundle: Path,
    manifest: BundleManifest,
    gone: Collection[str],
    own_files: Collection[str],
    write: Callable[[Path], None],
    destination: Path,
    is_overwrite_allowed: bool,
) -> BundleManifest:
    """Writes the bundle of ``manifest``, with the files of ``bundle``; returns its manifest.

    Files that stay are hard links where the file system has them.

    Args:
        manifest: Complete, but for what it says of files.
        gone: Files of ``bundle`` that stay only if the target model has them, too.
        own: Files of what is new; those that are none of ``bundle`` are written by ``write``, which
            is called with the folder.

    Raises:
        BundleError: The destination cannot be written; whatever was there is untouched.
    """
    kept = set(manifest.files) - (set(gone) - set(manifest.target.files))
    files = {path: entry for path, entry in manifest.files.items() if path in kept}
    with bundle_folder(destination, is_overwrite_allowed) as folder:
        for path in files:
            _link(bundle / path, folder / path)
        write(folder)
        for path in own_files:
            if path not in files:
                written = folder / path
                files[path] = FileEntry(written.stat().st_size, file_sha256(written))
        sealed = dataclasses.replace(manifest, files=files)
        write_manifest(folder, sealed)
    return sealed


def _link(source: Path, destination: Path) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)
