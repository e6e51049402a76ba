"""The n-gram store of an engine: opened with the bundle, shared by its methods."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgedec.models.errors import BundleError
from edgedec.models.manifest import BundleManifest
from edgedec.runtime.drafting.drafter import Drafter
from edgedec.runtime.text.tokenizer import TOKENIZER_NAME


def tokenizer_sha256(manifest: BundleManifest) -> str:
    """Returns what names the bundle's tokenizer in n-gram stores. Units: hex digits.

    Raises:
        BundleError: The bundle has no tokenizer.
    """
    if TOKENIZER_NAME not in manifest.files:
        raise BundleError(f"the manifest lists no {TOKENIZER_NAME}: export the bundle again")
    return manifest.files[TOKENIZER_NAME].sha256


def find_store(
    path: str | Path | None, manifest: BundleManifest, is_growing: bool = True
) -> Callable[[], Drafter] | None:
    """Returns a maker of drafters over the store at ``path``, which is made if there is none.

    Args:
        is_growing: Whether texts are added to the store when they end.

    Raises:
        ConfigError: ``path`` is no place for a store.
        BundleError: The file is something else, damaged, or of another version or tokenizer.
    """
    if path is None:
        return None
    from edgedec.runtime.drafters.store import StoreDrafter
    from edgedec.runtime.ngrams.ngram_store import NgramStore

    store = NgramStore.open(path, tokenizer_sha256(manifest))
    return lambda: StoreDrafter(store, is_growing)
