"""From the path of a bundle to an engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.manifest import ModelEntry, read_manifest
from edgedec.runtime.cores.affinity import Affinity
from edgedec.runtime.cores.machine import physical_cores, processors
from edgedec.runtime.engine import Engine, LoadedModel
from edgedec.runtime.methods.draft_source import find_draft
from edgedec.runtime.methods.store_source import find_store
from edgedec.runtime.opening.bundle_parts import default_method, defaults, identity, prompt_encoder
from edgedec.runtime.opening.loading import load_together
from edgedec.runtime.opening.split_cores import split_cores
from edgedec.runtime.sessions.memory import DRAFT, TARGET, KnownModel, SessionMemory, fingerprint_of
from edgedec.runtime.sessions.prefill import Progress
from edgedec.runtime.switching.tuned import TUNED_KEY
from edgedec.runtime.text.tokenizer import TOKENIZER_NAME


def load(
    path: str | Path,
    threads: int | None = None,
    context: int | None = None,
    on_progress: Progress | None = None,
    draft: bool | str | Path = True,
    draft_threads: int | None = None,
    prompt_cache_mb: int = 256,
    affinity: Sequence[int] | None = None,
    store: str | Path | None = None,
    is_store_growing: bool = True,
    overlap: str = "auto",
) -> Engine:
    """Returns an engine over the bundle at ``path``.

    Args:
        threads: Threads of the kernels; one for each processor of ``affinity``, or for each of the
            machine's physical cores, when None.
        context: Most tokens of prompt and output together; the bundle's own when None.
        on_progress: Called with ("load", steps done, steps in all).
        draft: Another bundle whose model drafts; True for the bundle's own draft model, if it has
            one, False for none. It takes no memory until a method uses it.
        draft_threads: Threads of the draft model; as many as the target model's when None.
        prompt_cache_mb: Most memory for what earlier prompts left, so that prompts that take turns
            are not computed anew; 0 for none. Nothing is copied before another prompt comes.
            Units: 10**6 bytes.
        affinity: The processors that threads stay on, one for each; the first is for the thread
            that calls, and only while the model computes. Wherever the system puts them when None.
        store: File of the n-gram store that the methods ``store`` and ``auto`` draft from; made if
            there is none.
        is_store_growing: Whether the texts of these methods are added to the store.
        overlap: Whether the draft model drafts on while the target model verifies, on processors of
            its own: ``on``, ``off``, or ``auto``: with four cores or more, as long as it pays.

    Raises:
        ConfigError: A number makes no sense.
        BundleError: The bundle is broken, foreign or unsafe.
    """
    started_s = time.perf_counter()
    report = on_progress or (lambda phase, done, total: None)
    _check_threads("threads", threads)
    _check_threads("draft_threads", draft_threads)
    _check_positive("context", context)
    memory = SessionMemory.of_mb(prompt_cache_mb)
    placed = Affinity.of(affinity, threads)
    threads = threads or len(placed.processors) or physical_cores()
    draft_threads = draft_threads or threads
    draft_placed = placed.first(draft_threads)
    folder = Path(path)
    report("load", 0, 2)
    manifest = read_manifest(folder)
    entry = manifest.target
    context = _chosen_context(context, entry)
    if TOKENIZER_NAME not in manifest.files:
        raise BundleError(f"the manifest of {folder} lists no {TOKENIZER_NAME}: export it again")
    found_store = find_store(store, manifest, is_store_growing)
    report("load", 1, 2)
    memory.know(
        TARGET, KnownModel(fingerprint_of(manifest, manifest.target_name), entry.config, context)
    )
    draft_source = find_draft(folder, manifest, draft, draft_threads, context)
    if draft_source is not None:
        memory.know(DRAFT, draft_source.model)
        draft_source = replace(draft_source, memory=memory, affinity=draft_placed)
    split = split_cores(overlap, placed, threads, entry, draft_source)
    session, tokenizer = load_together(folder, entry, threads, context, placed)
    report("load", 2, 2)
    return Engine(
        LoadedModel(
            session=session,
            tokenizer=tokenizer,
            encoder=prompt_encoder(folder, manifest, tokenizer),
            stop_token_ids=manifest.stop_token_ids,
            defaults=defaults(folder, manifest),
            load_ms=1000 * (time.perf_counter() - started_s),
            draft=draft_source,
            default_method=default_method(manifest),
            identity=identity(manifest, threads),
            memory=memory,
            tuned=manifest.defaults.get(TUNED_KEY),
            store=found_store,
            split=split,
        )
    )


def _check_threads(name: str, threads: int | None) -> None:
    _check_positive(name, threads)
    if threads is not None and threads > processors():
        raise ConfigError(
            f"{name} is {threads}, expected at most {processors()}, this machine's processors"
        )


def _check_positive(name: str, value: int | None) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} is {value!r}, expected a whole number of at least 1")


def _chosen_context(context: int | None, entry: ModelEntry) -> int:
    if context is not None and context > entry.context:
        raise ConfigError(
            f"context is {context}, the bundle was exported for {entry.context}: ask for less, or "
            "export with a larger context"
        )
    return context or entry.context
