"""Joins the two sides of a draft head: features from the runtime, training and export."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedec.export.bundle import check_destination
from edgedec.models.draft_heads import (
    ADAPTER,
    DRAFT_HEADS,
    EAGLE,
    FILE_SCHEMES,
    LIGHT_HEADS,
    HeadEntry,
)
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import BundleManifest, fingerprint_of, read_manifest
from edgedec.models.model_entry import ModelEntry
from edgedec.training.features.feature_file import held_out_of
from edgedec.training.features.reading import features_of
from edgedec.training.heads.head_check import share_found
from edgedec.training.options import (
    Clock,
    TrainingOptions,
    check_exit,
    needs_train_extra,
)
from edgedec.training.report import DraftingReport
from edgedec.training.speed_check import measured_speeds

if TYPE_CHECKING:
    from edgedec.training.heads.train_head import HeadPlan
    from edgedec.training.loop import OnProgress


@dataclass(frozen=True)
class HeadJob:
    """What `edgedec train head` or `edgedec train exit` was asked for; see their options.

    kind: of the head. n_steps: tokens deep that drafting is practised, or how many light heads
    there shall be. replay: texts that `--adapt` kept. exit_layer: layers behind which an adapter
    ends the model; None for a head on its last ones. head_file: where the head is written by
    itself. last: number of the last text of ``replay`` that is read; None: all are. is_timed: it is
    measured how fast the bundle is in the end.
    """

    bundle: Path
    output: Path
    options: TrainingOptions
    kind: str = EAGLE
    scheme: str = "int8"
    n_steps: int = 1
    replay: tuple[Path, ...] = ()
    is_continued: bool = False
    exit_layer: int | None = None
    head_file: Path | None = None
    last: int | None = None
    is_timed: bool = True

    def __post_init__(self) -> None:
        if self.kind not in (*DRAFT_HEADS, ADAPTER):
            raise ConfigError(
                f"there is no draft head of the kind {self.kind!r}, expected one of "
                f"{', '.join(DRAFT_HEADS)}"
            )
        if self.head_file is not None and self.scheme not in FILE_SCHEMES:
            raise ConfigError(
                f"a head's file is quantised as {' or '.join(FILE_SCHEMES)}, got {self.scheme}: "
                "choose one with --quantization"
            )
        if self.head_file is not None and not self.head_file.absolute().parent.is_dir():
            raise ConfigError(
                f"cannot write {self.head_file}: there is no such folder; make it first"
            )
        self.options.check(self.replay)


@dataclass(frozen=True, kw_only=True)
class HeadReport(DraftingReport):
    """What became of it. before: of the head that training went on from."""

    entry: HeadEntry

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields."""
        return {
            **super().to_dict(),
            "kind": self.entry.kind,
            "n_tokens": self.entry.n_tokens,
            "vocabulary": self.entry.head.config.trimmed_head_size,
            "hidden_layers": list(self.entry.hidden_layers),
            "held_out": list(self.entry.held_out),
        }

    def text(self) -> str:
        """Returns what people read."""
        depths = ", ".join(f"{share:.1%}" for share in self.entry.held_out)
        lines = [
            f"{self.bundle}: {self._what} of {self.n_bytes / 1e6:.1f} MB, trained on "
            f"{self.entry.n_tokens:,} tokens",
            f"in other texts it predicts {depths} of the model's own tokens, by depth; its "
            f"vocabulary covers {self.covered:.1%}; quantised, it predicts "
            f"{self.quantised:.1%} of the next ones",
            f"the first by kind of file: {self.kinds}",
        ]
        first = self.entry.held_out[0]
        return "\n".join([*lines, *self.warnings, *self.verdict(first)]) + "\n"

    @property
    def _what(self) -> str:
        entry = self.entry
        if entry.kind in LIGHT_HEADS:
            return f"{entry.head.config.n_layers} light heads ({entry.kind})"
        if entry.kind == ADAPTER:
            return f"an exit after layer {entry.hidden_layers[0]} with an adapter"
        return "a draft head"


def train_bundle_head(
    job: HeadJob, report: OnProgress, is_stopping: Callable[[], bool]
) -> HeadReport:
    """Writes the bundle that ``job`` asks for.

    Raises:
        ConfigError: The bundle's model, the corpus or an option is not fit for it.
        BundleError: A bundle is broken, or cannot be written.
    """
    with needs_train_extra():
        from edgedec.training.heads import train_head as heads
    options = job.options
    check_destination(job.output, options.force)
    manifest = read_manifest(job.bundle)
    manifest.check_writes()
    plan = _plan(job, manifest)
    layers = _checked_layers(manifest.target, job)
    _check_head(job, manifest)
    clock = Clock(options.minutes, is_stopping)
    heads.use_threads(options.n_threads)
    with features_of(
        job.bundle, manifest, options, job.output, report, clock, job.replay, layers, job.last
    ) as (file, n_skipped):
        head = heads.train_head(
            job.bundle, manifest, file, len(layers), plan, report, clock.is_over
        )
        entry = heads.head_entry(
            head,
            manifest.target,
            fingerprint_of(manifest, manifest.target_name),
            layers[-1:] if job.kind in LIGHT_HEADS else layers,
            job.scheme,
            ", ".join(map(str, (*(options.corpus or ()), *job.replay, *(options.prompts or ())))),
        )
        if job.head_file is not None:
            heads.share_head(job.head_file, job.bundle, manifest, head, entry, job.scheme)
        sealed = heads.put_head(job.bundle, manifest, head, entry, job.output, options.force)
        unseen = held_out_of(file.texts())
        quantised = share_found(job.output, sealed, unseen, options.n_threads)
        before = None
        if job.is_continued:
            before = share_found(job.bundle, manifest, unseen, options.n_threads)
        report("measure", 0, 0)
        speeds = None
        if job.is_timed:
            speeds = measured_speeds(job.output, job.bundle, unseen, options.n_threads, is_stopping)
    head_files = [path for path in entry.files if path not in manifest.target.files]
    measured = head.trained.measured
    return HeadReport(
        bundle=job.output,
        origin=job.bundle,
        n_bytes=sum(sealed.files[path].n_bytes for path in head_files),
        before=before,
        quantised=quantised,
        covered=measured.covered,
        by_kind=measured.by_kind,
        n_skipped=n_skipped,
        is_finite=head.trained.is_finite,
        speeds=speeds,
        entry=entry,
    )


def _plan(job: HeadJob, manifest: BundleManifest) -> HeadPlan:
    """Returns how the head is trained; of light heads there are as many as those continued."""
    from edgedec.training.heads.train_head import LIGHT_BATCH, HeadPlan
    from edgedec.training.loop import TrainingPlan

    options, n_steps = job.options, job.n_steps
    if job.is_continued and job.kind in LIGHT_HEADS and manifest.head is not None:
        n_steps = manifest.head.head.config.n_layers
    training = TrainingPlan(
        options.epochs, n_steps, learning_rate=options.learning_rate, seed=options.seed
    )
    if job.kind in LIGHT_HEADS:
        training = dataclasses.replace(training, batch=LIGHT_BATCH)
    return HeadPlan(training, options.vocabulary, job.scheme, job.is_continued, job.kind)


def _check_head(job: HeadJob, manifest: BundleManifest) -> None:
    """Raises a ConfigError where a head is to be continued that cannot be."""
    if not job.is_continued:
        return
    if manifest.head is None or manifest.head.kind != job.kind:
        has = (
            "no draft head" if manifest.head is None else f"a head of the kind {manifest.head.kind}"
        )
        raise ConfigError(
            f"{job.bundle} has {has}, expected one of the kind {job.kind} to continue: leave "
            "--continue away, or name its --kind"
        )
    target = manifest.target
    manifest.head.check_fits(
        fingerprint_of(manifest, manifest.target_name), target.config, target.contract.can.hidden
    )


def _checked_layers(entry: ModelEntry, job: HeadJob) -> tuple[int, ...]:
    """Returns the layers whose hidden states are read, the last one included, or an adapter's.

    Light heads need no other than the last one's. Where the graph returns more, these are read as
    well, so that one reading serves all kinds of heads.
    """
    n_layers, layers = entry.config.n_layers, entry.contract.can.hidden
    if (exit_layer := job.exit_layer) is not None:
        check_exit(exit_layer, n_layers)
        if not (exit_layer in layers and entry.contract.can.entry):
            raise ConfigError(
                f"this bundle's graph returns the hidden states of the layers {list(layers)}, an "
                f"exit after layer {exit_layer} of {n_layers} needs its own: export the model "
                f"again with --exit {exit_layer}"
            )
        return (exit_layer,)
    n_least = 1 if job.kind in LIGHT_HEADS else 2
    if len(layers) < n_least or layers[-1] != n_layers:
        example = f"{max(1, n_layers // 14)},{n_layers // 2}"
        raise ConfigError(
            f"this bundle's graph returns the hidden states of the layers {list(layers)}, a draft "
            f"head needs those of an early, a middle and the last layer: export the model again "
            f"with --hidden-layers {example}"
        )
    return layers
