"""The last phase: hashes and manifest of the finished folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from edgedec.export.bundle import hash_files, write_manifest
from edgedec.export.phases.model_export import ModelExport
from edgedec.models.bundle_files import FileEntry
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.installation import distribution_version
from edgedec.models.manifest import SCHEMA_VERSION, BundleManifest, fingerprint_of
from edgedec.models.model_entry import DRAFT_MODEL, TARGET_MODEL, ModelEntry
from edgedec.models.pooling import EmbeddingConfig
from edgedec.models.source_tokens import SourceText


def seal(models: dict[str, ModelExport], report: Callable[[int, int], None]) -> BundleManifest:
    """Writes hashes and the manifest, which is returned.

    Renaming the folder is the last act of the export.

    Args:
        models: by their kind, which is also their name in the bundle.
        report: called with bytes hashed and bytes in all.
    """
    folder = models[TARGET_MODEL].bundle_folder
    n_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    done = 0

    def on_bytes(n_read: int) -> None:
        nonlocal done
        done += n_read
        report(done, n_bytes)

    manifest = _manifest(models, hash_files(folder, on_bytes))
    write_manifest(folder, manifest)
    return manifest


def _manifest(models: dict[str, ModelExport], files: dict[str, FileEntry]) -> BundleManifest:
    target = models[TARGET_MODEL]
    published = target.published
    entries = {name: _entry(model) for name, model in models.items()}
    verification = dict(target.verification)
    if DRAFT_MODEL in models:
        verification[DRAFT_MODEL] = models[DRAFT_MODEL].verification
    manifest = BundleManifest(
        schema_version=SCHEMA_VERSION,
        name=published.name,
        licence=published.licence,
        edgedec_version=distribution_version(),
        device_target=target.config.device_target,
        quantization=target.config.quantization,
        models=entries,
        files=files,
        stop_token_ids=published.special.eos_ids,
        opening_token_ids=published.special.opening_ids,
        template_variables=dict(published.special.variables),
        defaults={"method": "auto"},
        verification=verification,
        source=_source(target),
        embedding=_embedding(target),
    )
    if target.head is None:
        return manifest
    head = dataclasses.replace(target.head, model=fingerprint_of(manifest, manifest.target_name))
    return dataclasses.replace(manifest, head=head)


def _source(target: ModelExport) -> SourceText | None:
    """Returns how texts of an encoder-decoder model begin and end; None of others."""
    assert target.entry is not None
    if target.entry.config.encoder is None:
        return None
    special = target.published.special
    if special.start_id is None:
        raise UnsupportedModelError(
            f"{target.published.name} states no decoder_start_token_id within its vocabulary, with "
            "which its decoder begins: add it to config.json"
        )
    return SourceText(special.closing_ids, special.start_id)


def _embedding(target: ModelExport) -> EmbeddingConfig | None:
    """Returns how texts become vectors, of an embedding model; None of others."""
    if target.embedding is None:
        return None
    closing = target.published.special.closing_ids
    return dataclasses.replace(target.embedding.config, closing_token_ids=closing)


def _entry(model: ModelExport) -> ModelEntry:
    assert model.entry is not None
    if model.kind == TARGET_MODEL:
        return model.entry
    published = model.published
    return dataclasses.replace(model.entry, name=published.name, licence=published.licence)
