"""Fits KV maps for a bundle, and puts them into it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from edgedec.models.errors import ConfigError
from edgedec.models.graph import K_CACHE
from edgedec.models.kv_maps import DRAFT_KV_MAPS, KV_MAPS, MapsEntry
from edgedec.models.manifest import BundleManifest, fingerprint_of, read_manifest
from edgedec.models.model_entry import ModelEntry
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.methods.draft_source import DraftSource
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.runtime.sequences.prefill import Progress
from edgedec.targets import library_suffixes
from edgedec.training.features.corpus import corpus_key
from edgedec.training.kv_maps.fit_maps import corpus_windows, fit
from edgedec.training.kv_maps.kv_check import (
    MAX_NEW_TOKENS,
    MapsCheck,
    draft_maps_check,
    held_out_prompts,
    own_maps_check,
)
from edgedec.training.kv_maps.kv_entry import write_draft_maps, write_own_maps
from edgedec.training.kv_maps.kv_progress import CorpusWindows, FitFile
from edgedec.training.kv_maps.model_kv import Reader, fit_model
from edgedec.training.options import check_exit


@dataclass(frozen=True)
class KVJob:
    """What is asked for.

    corpus: text files, or folders of them. threads: one per core when None.
    """

    bundle: Path
    corpus: tuple[Path, ...]
    max_tokens: int
    threads: int | None

    @property
    def described(self) -> str:
        """The corpus, as the manifest names it."""
        return ", ".join(map(str, self.corpus))

    def reading(
        self,
        engine: Engine,
        context: int,
        report: Progress,
        is_stopping: Callable[[], bool],
        file: FitFile,
    ) -> CorpusWindows:
        """Returns windows of the corpus, of ``context`` tokens at most, until ``is_stopping``."""
        windows = takewhile(lambda _: not is_stopping(), self._windows(engine, context))
        return CorpusWindows(
            windows, lambda n_tokens: report("fit", n_tokens, self.max_tokens), file
        )

    def held_out(self, engine: Engine) -> list[list[int]]:
        """Returns prompts from windows that maps are only measured with."""
        return held_out_prompts(self._windows(engine, engine.context - MAX_NEW_TOKENS))

    def _windows(self, engine: Engine, context: int) -> Iterator[list[int]]:
        return corpus_windows(self.corpus, engine.tokenizer.encode, self.max_tokens, context)

    def file(self, *facts: object) -> FitFile:
        """Returns the file that keeps what is read. facts: what the models are, and their maps."""
        return FitFile(self.bundle, (*facts, self.max_tokens, corpus_key(self.corpus)))


@dataclass(frozen=True)
class KVReport:
    """What became of it. source: what the maps read. verdict: of ``check``, for people."""

    bundle: Path
    entry: MapsEntry
    source: str
    check: MapsCheck | None
    verdict: str

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields."""
        measured = None if self.check is None else self.check.to_dict()
        return {"bundle": str(self.bundle), **dataclasses.asdict(self.entry), "measured": measured}

    def text(self) -> str:
        """Returns what people read."""
        entry = self.entry
        verdict = self.verdict or (
            "no verdict on speed: the fit was stopped, or the texts are too few or too short"
        )
        return (
            f"{self.bundle}: maps from {self.source}, fitted on {entry.n_tokens:,} tokens; they "
            f"miss {entry.unexplained:.1%} of the variance, of other texts {entry.held_out:.1%}\n"
            f"{verdict}\n"
        )


def train_own_maps(
    job: KVJob, exit_layer: int | None, report: Progress, is_stopping: Callable[[], bool]
) -> KVReport:
    """Fits maps from the first layers to the others; measures what they gain.

    Raises:
        ConfigError: The bundle cannot have such maps, or the corpus is too small.
    """
    manifest = read_manifest(job.bundle)
    manifest.check_writes()
    chosen = _checked_exit(manifest, exit_layer)
    config = manifest.target.config
    with load(job.bundle, EngineOptions(threads=job.threads, draft=False)) as engine:
        file = job.file(KV_MAPS, chosen, fingerprint_of(manifest, manifest.target_name))
        reading = job.reading(engine, engine.context, report, is_stopping, file)
        fitted = fit(engine.new_sequence(), config, chosen, reading)
    entry = write_own_maps(job.bundle, manifest, chosen, fitted, job.described)
    file.remove()
    report("measure", 0, 0)
    with load(job.bundle, EngineOptions(threads=job.threads, draft=False)) as engine:
        check = own_maps_check(engine, job.held_out(engine), is_stopping)
    verdict = "" if check is None else check.own_text()
    return KVReport(job.bundle, entry, f"layer {chosen} of {config.n_layers}", check, verdict)


def train_draft_maps(job: KVJob, report: Progress, is_stopping: Callable[[], bool]) -> KVReport:
    """Fits maps from the target to the draft model; measures what they gain.

    Raises:
        ConfigError: The bundle cannot have such maps, or the corpus is too small.
    """
    manifest = read_manifest(job.bundle)
    file = job.file(DRAFT_KV_MAPS, *(fingerprint_of(manifest, name) for name in manifest.models))
    with load(job.bundle, EngineOptions(threads=job.threads)) as engine:
        draft, source = _checked_draft(manifest, engine.draft)
        role = source.open()
        target = Reader(engine.new_sequence(), manifest.target.config)
        drafting = Reader(role.pool.take(()), source.entry.config)
        try:
            _check_runs_maps(manifest.models[draft])
            context = min(engine.context, source.context)
            reading = job.reading(engine, context, report, is_stopping, file)
            fitted = fit_model(target, drafting, reading)
        finally:
            role.close()
        entry = write_draft_maps(job.bundle, manifest, draft, fitted, job.described)
        file.remove()
        report("measure", 0, 0)
        with load(job.bundle, EngineOptions(threads=job.threads)) as after:
            check = draft_maps_check(after, engine, job.held_out(engine), is_stopping)
    verdict = "" if check is None else check.draft_text()
    return KVReport(job.bundle, entry, "the target model to the draft model", check, verdict)


def _checked_draft(manifest: BundleManifest, source: DraftSource | None) -> tuple[str, DraftSource]:
    """Returns the draft model, if what it keeps of a text can be predicted from the target's."""
    name = manifest.draft_name
    if name is None or source is None:
        raise ConfigError("this bundle has no draft model: export it with --draft")
    if source.tokenizers is not None:
        raise ConfigError(
            "keys and values are mapped token by token, but the draft model has a tokenizer of its "
            "own: choose one with the target model's"
        )
    for model in (manifest.target, manifest.models[name]):
        if K_CACHE not in model.contract.inputs or model.config.windowed_layers:
            raise ConfigError(
                f"the {model.kind} model does not keep all tokens of all layers in panels, which "
                "maps read and write: export a model without windows, as a fused graph"
            )
    return name, source


def _checked_exit(manifest: BundleManifest, exit_layer: int | None) -> int:
    """Returns the layers that are computed; raises a ConfigError where the model has no such."""
    entry = manifest.target
    if not entry.contract.can.entry or K_CACHE not in entry.contract.inputs:
        raise ConfigError(
            "this bundle's graph has no entry port, which predicted rows need: export the model "
            "again, as a fused graph"
        )
    _check_runs_maps(entry)
    n_layers = entry.config.n_layers
    chosen = n_layers // 2 if exit_layer is None else exit_layer
    check_exit(chosen, n_layers)
    return chosen


def _check_runs_maps(model: ModelEntry) -> None:
    if library_suffixes(model.contract.backend):
        raise ConfigError(
            "predicted rows are written by an ONNX graph, which compiled bundles do not run: "
            "export the model again without --compiler"
        )
