"""From the path of a bundle to an engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.manifest import (
    SKIP_KEY,
    TOKENIZER_NAME,
    BundleManifest,
    fingerprint_of,
    read_manifest,
)
from edgedec.models.model_entry import ModelEntry
from edgedec.runtime.backends import release_model
from edgedec.runtime.config.checks import check_progress, check_type, checked_path
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.loaded import LoadedModel
from edgedec.runtime.methods.store_source import find_store
from edgedec.runtime.opening.bundle_parts import (
    default_method,
    defaults,
    identity,
    prompt_encoder,
    tuned,
)
from edgedec.runtime.opening.devices import draft_on_device, on_device
from edgedec.runtime.opening.loading import load_together
from edgedec.runtime.opening.options import EngineOptions
from edgedec.runtime.opening.split_cores import at_home, split_cores
from edgedec.runtime.sequences.affinity import Affinity
from edgedec.runtime.sequences.memory import DRAFT, TARGET, KnownModel, SessionMemory
from edgedec.runtime.sequences.prefill import Progress
from edgedec.system.processors import physical_cores

if TYPE_CHECKING:
    from edgedec.models.final_norm import FinalNorm
    from edgedec.runtime.decoding.prefilling import Auxiliary
    from edgedec.runtime.drafting.draft_kv_maps import DraftKVMaps
    from edgedec.runtime.drafting.skip_set import SkipSet
    from edgedec.runtime.methods.draft_source import DraftSource
    from edgedec.runtime.methods.head_source import HeadSource
    from edgedec.runtime.sequences.model import KVPredictor
    from edgedec.runtime.sequences.pool import SequencePool
    from edgedec.runtime.sequences.prefix_files import PrefixFiles


def load(
    path: str | Path,
    options: EngineOptions | None = None,
    on_progress: Progress | None = None,
) -> Engine:
    """Returns an engine over the bundle at ``path``.

    Args:
        options: How it is loaded.
        on_progress: Called with ("load", steps done, steps in all).

    Raises:
        ConfigError: The options do not fit the bundle.
        BundleError: The bundle is broken, foreign or unsafe.
    """
    started_s = time.perf_counter()
    folder = checked_path("the bundle", path)
    options = EngineOptions() if options is None else options
    check_type("options", options, EngineOptions, "EngineOptions or None")
    check_progress(on_progress)
    report = on_progress or (lambda phase, done, total: None)
    memory = SessionMemory(options.prefix_cache_mb * 10**6, _prefix_files(options))
    placed = Affinity.of(options.affinity, options.threads)
    threads = options.threads or len(placed.processors) or physical_cores()
    report("load", 0, 2)
    manifest = read_manifest(folder)
    head = manifest.head
    target = manifest.target if head is None or head.joined is None else head.joined
    entry = on_device(target, options.provider, options.device)
    context = _chosen_context(options.context, entry)
    if TOKENIZER_NAME not in manifest.files:
        raise BundleError(f"the manifest of {folder} lists no {TOKENIZER_NAME}: export it again")
    store = find_store(options.store, manifest)
    report("load", 1, 2)
    fingerprint = fingerprint_of(manifest, manifest.target_name)
    memory.know(TARGET, KnownModel(fingerprint, entry.config, context))
    draft_threads = options.draft_threads or threads
    draft = _find_draft(folder, manifest, options.draft, draft_threads, context)
    if draft is not None:
        memory.know(DRAFT, draft.model)
        cores = placed.first(draft_threads)
        draft = replace(
            draft,
            entry=draft_on_device(draft.entry, options),
            memory=memory,
            affinity=cores,
            mapped=_find_mapped_reading(folder, manifest, options, draft_threads, cores),
        )
    elif options.draft_provider or options.draft_device:
        raise ConfigError(
            "draft_provider and draft_device need a draft model, and there is none: export the "
            "bundle with --draft, or name one with --draft"
        )
    split = split_cores(options.overlap, placed, threads, entry, draft)
    if draft is not None and split.is_on:
        draft = at_home(draft, split)
    model, tokenizer = load_together(folder, entry, threads, placed)
    report("load", 2, 2)
    try:
        return Engine(
            LoadedModel(
                model=model,
                context=context,
                tokenizer=tokenizer,
                encoder=prompt_encoder(folder, manifest, tokenizer),
                stop_token_ids=manifest.stop_token_ids,
                defaults=defaults(folder, manifest),
                load_ms=1000 * (time.perf_counter() - started_s),
                draft=draft,
                default_method=default_method(manifest),
                identity=identity(manifest, threads, entry.contract.providers),
                memory=memory,
                tuned=tuned(manifest),
                skip_set=_find_skip_set(manifest),
                head=_find_head(folder, manifest, threads, context, placed),
                store=store,
                is_store_growing=options.is_store_growing,
                split=split,
                release=release_model,
                predictor=_find_predictor(folder, manifest, threads, placed),
                auxiliary=_find_auxiliary(folder, manifest, options, threads, placed),
                final_norm=_find_final_norm(folder, entry),
            )
        )
    except BaseException:
        release_model(model)  # nobody else has it to give back
        raise


# What most bundles do not have is imported where it is found: it delays a first token.


def _prefix_files(options: EngineOptions) -> PrefixFiles | None:
    if options.prefix_disk_mb == 0:
        return None
    import platformdirs

    from edgedec.runtime.sequences.prefix_files import PrefixFiles

    folder = Path(platformdirs.user_cache_dir("edgedec")) / "prefixes"
    return PrefixFiles(folder, options.prefix_disk_mb * 10**6)


def _find_draft(
    folder: Path, manifest: BundleManifest, draft: bool | str | Path, threads: int, context: int
) -> DraftSource | None:
    if draft is False or (draft is True and manifest.draft_name is None):
        return None
    from edgedec.runtime.methods.draft_source import find_draft

    return find_draft(folder, manifest, draft, threads, context)


def _find_head(
    folder: Path, manifest: BundleManifest, threads: int, context: int, affinity: Affinity
) -> HeadSource | None:
    if manifest.head is None:
        return None
    from edgedec.runtime.methods.head_source import find_head

    return find_head(folder, manifest, threads, context, affinity)


def _find_skip_set(manifest: BundleManifest) -> SkipSet | None:
    if SKIP_KEY not in manifest.defaults:
        return None
    from edgedec.runtime.drafting.skip_set import SkipSet

    return SkipSet.read(manifest.defaults, manifest.target.config)


def _find_predictor(
    folder: Path, manifest: BundleManifest, threads: int, affinity: Affinity
) -> Callable[[], KVPredictor] | None:
    if not manifest.auxiliary:
        return None
    from edgedec.runtime.opening.kv_maps import find_predictor

    return find_predictor(folder, manifest, threads, affinity)


def _find_mapped_reading(
    folder: Path, manifest: BundleManifest, options: EngineOptions, threads: int, affinity: Affinity
) -> Callable[[SequencePool], DraftKVMaps] | None:
    """Returns what opens the maps to the bundle's own draft model, if that is to draft."""
    if options.draft is not True or not manifest.auxiliary:
        return None
    from edgedec.runtime.opening.kv_maps import find_draft_kv_maps

    return find_draft_kv_maps(folder, manifest, threads, affinity)


def _find_auxiliary(
    folder: Path, manifest: BundleManifest, options: EngineOptions, threads: int, affinity: Affinity
) -> Callable[[SequencePool], Auxiliary] | None:
    """Returns what opens the maps from the bundle's own draft model, if that is there to read."""
    if options.draft is not True or not manifest.auxiliary:
        return None
    from edgedec.runtime.opening.kv_maps import find_auxiliary

    return find_auxiliary(folder, manifest, threads, affinity)


def _find_final_norm(folder: Path, entry: ModelEntry) -> Callable[[], FinalNorm] | None:
    if entry.final_norm is None:
        return None
    path = folder / entry.final_norm

    def read() -> FinalNorm:
        from edgedec.models.final_norm import read_final_norm

        return read_final_norm(path, entry.config)

    return read


def _chosen_context(context: int | None, entry: ModelEntry) -> int:
    if context is not None and context > entry.context:
        raise ConfigError(
            f"context is {context}, the bundle was exported for {entry.context}: ask for less, or "
            "export with a larger context"
        )
    return context or entry.context
