"""From the path of a bundle to an engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.manifest import (
    DENSE_NAME,
    TOKENIZER_NAME,
    BundleManifest,
    fingerprint_of,
    read_manifest,
)
from edgedec.models.model_entry import ModelEntry
from edgedec.runtime.backends import open_model, release_model
from edgedec.runtime.config.checks import check_progress, check_type, checked_path
from edgedec.runtime.drafting.drafter_parts import DrafterParts, Shared
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.loaded import LoadedModel
from edgedec.runtime.methods.method_parts import MethodParts
from edgedec.runtime.opening.bundle_parts import (
    default_method,
    defaults,
    edit_bounds,
    identity,
    prompt_encoder,
    tuned,
)
from edgedec.runtime.opening.devices import draft_on_device, on_device
from edgedec.runtime.opening.options import EngineOptions
from edgedec.runtime.sequences.affinity import Affinity
from edgedec.runtime.sequences.model import Model
from edgedec.runtime.sequences.prefill import Progress
from edgedec.runtime.sequences.session_memory import DRAFT, TARGET, KnownModel, SessionMemory
from edgedec.runtime.text.tokenizer import Tokenizer
from edgedec.system.memory import free_memory_bytes
from edgedec.system.processors import physical_cores
from edgedec.targets import find_graph_kind

if TYPE_CHECKING:
    from edgedec.models.final_norm import FinalNorm
    from edgedec.models.pooling import DenseLayer
    from edgedec.runtime.decoding.unmasking import MaskedModel
    from edgedec.runtime.drafting.draft_kv_maps import DraftKVMaps
    from edgedec.runtime.drafting.ngrams.ngram_store import NgramStore
    from edgedec.runtime.methods.draft_source import DraftSource
    from edgedec.runtime.methods.head_source import HeadSource
    from edgedec.runtime.sequences.model import KVPredictor
    from edgedec.runtime.sequences.pool import SequencePool
    from edgedec.runtime.sequences.prefix_files import PrefixFiles


@dataclass(frozen=True)
class _Opening:
    """A bundle that is being opened. entry: the target model's, on its device."""

    folder: Path
    manifest: BundleManifest
    options: EngineOptions
    entry: ModelEntry
    context: int
    threads: int
    affinity: Affinity

    @property
    def draft_threads(self) -> int:
        return self.options.draft_threads or self.threads

    @property
    def has_maps(self) -> bool:
        """Whether maps between the bundle's own models are there, and its draft model drafts."""
        return self.options.draft is True and bool(self.manifest.auxiliary)


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
    report("load", 0, 2)
    opening = _begin(folder, options)
    files = opening.manifest.files
    sizes = {folder / name: files[name].n_bytes for name in opening.entry.files}
    if sum(sizes.values()) > (room := free_memory_bytes()):
        from edgedec.runtime.opening.room import warn_of_disk  # few models are so large

        warn_of_disk(sizes, room)
    store = _find_store(opening)
    report("load", 1, 2)
    memory = _new_memory(opening)
    draft = _find_draft(opening, memory)
    model, tokenizer = _load_together(folder, opening.entry, opening.threads, opening.affinity)
    report("load", 2, 2)
    try:
        parts = _method_parts(opening, model, store, draft)
        return Engine(_loaded(opening, model, tokenizer, parts, memory, started_s))
    except BaseException:
        release_model(model)  # nobody else has it to give back
        raise


def _begin(folder: Path, options: EngineOptions) -> _Opening:
    """Returns what is known of a bundle before any of its models is read."""
    affinity = Affinity.of(options.affinity, options.threads)
    threads = options.threads or len(affinity.processors) or physical_cores()
    manifest = read_manifest(folder)
    if not options.head:
        manifest = replace(manifest, head=None)
    head = manifest.head
    target = manifest.target if head is None or head.joined is None else head.joined
    entry = on_device(target, options.provider, options.device)
    context = _chosen_context(options.context, entry)
    if TOKENIZER_NAME not in manifest.files:
        raise BundleError(f"the manifest of {folder} lists no {TOKENIZER_NAME}: export it again")
    return _Opening(folder, manifest, options, entry, context, threads, affinity)


def _new_memory(opening: _Opening) -> SessionMemory:
    """Returns an empty memory that knows the target model."""
    options, manifest = opening.options, opening.manifest
    if opening.entry.contract.can.sources:
        memory = SessionMemory()  # rows of a source depend on all of it: no two have some in common
    else:
        memory = SessionMemory(options.prefix_cache_mb * 10**6, _prefix_files(options))
    fingerprint = fingerprint_of(manifest, manifest.target_name)
    memory.know(TARGET, KnownModel(fingerprint, opening.entry.config, opening.context))
    return memory


def _load_together(
    folder: Path, entry: ModelEntry, threads: int, affinity: Affinity
) -> tuple[Model, Tokenizer]:
    """Returns the model ``entry`` of the bundle at ``folder``, and its tokenizer.

    Raises:
        BundleError: One of them is broken.
    """
    opened = partial(open_model, folder, entry, threads, affinity)
    # Takes long, and Python's lock: here, before there are two.
    with suppress(ImportError, LookupError):  # whoever needs it says so
        import_module(find_graph_kind(entry.contract.backend).first_import)
    with ThreadPoolExecutor(max_workers=1) as pool:
        model = pool.submit(opened)
        # An import gives Python's lock away at every file, and the other thread needs it for a
        # millisecond until all of its work is ONNX Runtime's. Reading a tokenizer never does.
        import_module("edgedec.runtime.text.chat_template")
        try:
            tokenizer = Tokenizer.load(folder / TOKENIZER_NAME)
        except BaseException:
            if model.exception() is None:
                release_model(model.result())
            raise
        return model.result(), tokenizer


def _find_store(opening: _Opening) -> NgramStore | None:
    if opening.options.store is None:
        return None
    from edgedec.runtime.methods.store_source import open_store

    return open_store(opening.options.store, opening.manifest)


def _method_parts(
    opening: _Opening,
    model: Model,
    store: NgramStore | None,
    draft: DraftSource | None,
) -> MethodParts:
    manifest, head = opening.manifest, _find_head(opening)
    drafters = DrafterParts(
        store=store,
        is_store_growing=opening.options.is_store_growing,
        draft=None if draft is None else Shared(draft.open),
        heads={} if head is None or head.need is None else {head.need: Shared(head.open)},
        mtp=None if head is None else head.mtp,
    )
    return MethodParts(
        context=opening.context,
        hidden_layers=model.capabilities.hidden,
        drafters=drafters,
        draft=draft,
        head=head,
        identity=identity(manifest, opening.threads, opening.entry.contract.providers),
        tuned=tuned(manifest),
        masked=_find_masked(opening.entry),
    )


def _loaded(
    opening: _Opening,
    model: Model,
    tokenizer: Tokenizer,
    parts: MethodParts,
    memory: SessionMemory,
    started_s: float,
) -> LoadedModel:
    folder, manifest = opening.folder, opening.manifest
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        encoder=prompt_encoder(folder, manifest, tokenizer),
        parts=parts,
        stop_token_ids=manifest.stop_token_ids,
        defaults=defaults(folder, manifest),
        load_ms=1000 * (time.perf_counter() - started_s),
        default_method=default_method(manifest),
        memory=memory,
        release=release_model,
        predictor=_find_predictor(opening),
        final_norm=_find_final_norm(folder, opening.entry),
        embedding=manifest.embedding,
        dense=_find_dense(folder, manifest),
        is_embedder=opening.entry.config.is_embedder,
        hidden_size=opening.entry.config.hidden_size,
        edit_bounds=edit_bounds(manifest),
    )


# What most bundles do not have is imported where it is found: it delays a first token.


def _prefix_files(options: EngineOptions) -> PrefixFiles | None:
    if options.prefix_disk_mb == 0:
        return None
    import platformdirs

    from edgedec.runtime.sequences.prefix_files import PrefixFiles, private_folder

    if options.prefix_folder is not None:
        folder = private_folder(Path(options.prefix_folder))
        return PrefixFiles(folder, options.prefix_disk_mb * 10**6)
    folder = Path(platformdirs.user_cache_dir("edgedec")) / "prefixes"
    return PrefixFiles(folder, options.prefix_disk_mb * 10**6)


def _named_draft(opening: _Opening) -> DraftSource | None:
    """Returns the draft model that the options name, the bundle's by default."""
    draft, manifest = opening.options.draft, opening.manifest
    if draft is False or (draft is True and manifest.draft_name is None):
        return None
    from edgedec.runtime.methods.draft_source import find_draft

    return find_draft(opening.folder, manifest, draft, opening.draft_threads, opening.context)


def _find_draft(opening: _Opening, memory: SessionMemory) -> DraftSource | None:
    """Returns the draft model, if there is one."""
    options, threads = opening.options, opening.draft_threads
    draft, cores = _named_draft(opening), opening.affinity.first(threads)
    if draft is not None:
        memory.know(DRAFT, draft.model)
        draft = replace(
            draft,
            entry=draft_on_device(draft.entry, options),
            memory=memory,
            affinity=cores,
            mapped=_find_draft_kv_maps(opening, cores),
        )
    elif options.draft_provider or options.draft_device:
        raise ConfigError(
            "draft_provider and draft_device need a draft model, and there is none: export the "
            "bundle with --draft, or name one with --draft"
        )
    return draft


def _find_head(opening: _Opening) -> HeadSource | None:
    if opening.manifest.head is None:
        return None
    from edgedec.runtime.methods.head_source import find_head

    return find_head(
        opening.folder, opening.manifest, opening.threads, opening.context, opening.affinity
    )


def _find_predictor(opening: _Opening) -> Callable[[], KVPredictor] | None:
    if not opening.manifest.auxiliary:
        return None
    from edgedec.runtime.opening.kv_maps import find_predictor

    return find_predictor(opening.folder, opening.manifest, opening.threads, opening.affinity)


def _find_draft_kv_maps(
    opening: _Opening, affinity: Affinity
) -> Callable[[SequencePool], DraftKVMaps] | None:
    """Returns what opens the maps to the bundle's own draft model, if that is to draft."""
    if not opening.has_maps:
        return None
    from edgedec.runtime.opening.kv_maps import find_draft_kv_maps

    return find_draft_kv_maps(opening.folder, opening.manifest, opening.draft_threads, affinity)


def _find_masked(entry: ModelEntry) -> MaskedModel | None:
    """Returns what a model states that fills masks in; None of others."""
    if not entry.config.fills_masks:
        return None
    from edgedec.runtime.decoding.unmasking import MaskedModel

    return MaskedModel(entry.config.mask_token, entry.config.predicts_next)


def _find_final_norm(folder: Path, entry: ModelEntry) -> Callable[[], FinalNorm] | None:
    if entry.final_norm is None:
        return None
    path = folder / entry.final_norm

    def read() -> FinalNorm:
        from edgedec.models.final_norm import read_final_norm

        return read_final_norm(path, entry.config)

    return read


def _find_dense(
    folder: Path, manifest: BundleManifest
) -> Callable[[], tuple[DenseLayer, ...]] | None:
    embedding = manifest.embedding
    if embedding is None or not embedding.dense:
        return None
    shapes = embedding.dense

    @cache
    def read() -> tuple[DenseLayer, ...]:
        from edgedec.models.pooling import read_dense

        return read_dense(folder / DENSE_NAME, shapes)

    return read


def _chosen_context(context: int | None, entry: ModelEntry) -> int:
    if context is not None and context > entry.context:
        raise ConfigError(
            f"context is {context}, the bundle was exported for {entry.context}: ask for less, or "
            "export with a larger --context"
        )
    return context or entry.context
