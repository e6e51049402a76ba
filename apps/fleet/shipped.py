"""Folders that hosts get copies of, named by what they hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgedec.models.bundle_files import file_sha256
from edgedec.models.manifest import MANIFEST_NAME, read_manifest


@dataclass(frozen=True)
class Shipped:
    """A folder to copy.

    hashes: SHA-256 of its files, by path. name: what the copy is called, from these.
    """

    folder: Path
    hashes: Mapping[str, str]
    n_bytes: int

    @property
    def name(self) -> str:
        """The hash of all hashes."""
        listed = json.dumps(self.hashes, sort_keys=True)
        return hashlib.sha256(listed.encode()).hexdigest()[:32]


def ship_bundle(bundle: Path) -> Shipped:
    """Returns a bundle as something to copy: what its manifest lists, and no other file.

    Raises:
        BundleError: It is damaged, as far as one sees without reading its weights.
    """
    manifest = read_manifest(bundle)
    hashes = {path: entry.sha256 for path, entry in manifest.files.items()}
    n_bytes = sum(entry.n_bytes for entry in manifest.files.values())
    manifest_path = bundle / MANIFEST_NAME
    return Shipped(
        bundle,
        {**hashes, MANIFEST_NAME: file_sha256(manifest_path)},
        n_bytes + manifest_path.stat().st_size,
    )


def ship_file(path: Path) -> Shipped:
    """Returns one file as something to copy.

    Raises:
        BundleError: It cannot be read.
    """
    return Shipped(path.parent, {path.name: file_sha256(path)}, path.stat().st_size)
