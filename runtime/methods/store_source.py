"""The n-gram store of an engine: opened with the bundle, shared by its methods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgedec.models.errors import BundleError
from edgedec.models.manifest import TOKENIZER_NAME, BundleManifest

if TYPE_CHECKING:
    from edgedec.runtime.drafting.ngrams.ngram_store import NgramStore


def tokenizer_sha256(manifest: BundleManifest) -> str:
    """Returns what names the bundle's tokenizer in n-gram stores. Units: hex digits.

    Raises:
        BundleError: The bundle has no tokenizer.
    """
    if TOKENIZER_NAME not in manifest.files:
        raise BundleError(f"the manifest lists no {TOKENIZER_NAME}: export the bundle again")
    return manifest.files[TOKENIZER_NAME].sha256


def open_store(path: str | Path, manifest: BundleManifest) -> NgramStore:
    """Returns the store at ``path``, which is made if there is none.

    Raises:
        ConfigError: ``path`` is no place for a store.
        BundleError: The file is something else, damaged, or of another version or tokenizer.
    """
    from edgedec.runtime.drafting.ngrams.ngram_store import NgramStore

    return NgramStore.open(path, tokenizer_sha256(manifest))
