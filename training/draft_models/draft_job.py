"""Joins the two sides of a draft model: what the target says from the runtime, training, export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedec.export.bundle import check_destination
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import TOKENIZER_NAME, BundleManifest, read_manifest
from edgedec.training.features.feature_file import held_out_of
from edgedec.training.features.reading import features_of
from edgedec.training.heads.head_check import share_drafted
from edgedec.training.options import Clock, TrainingOptions, needs_train_extra
from edgedec.training.report import DraftingReport
from edgedec.training.speed_check import measured_speeds

if TYPE_CHECKING:
    from edgedec.training.loop import OnProgress


@dataclass(frozen=True)
class DraftJob:
    """What `edgedec train draft` was asked for; see its options."""

    bundle: Path
    output: Path
    options: TrainingOptions
    n_layers: int | None = None
    origin: Path | None = None
    loss: str = "kl"
    scheme: str = "int8"

    def __post_init__(self) -> None:
        self.options.check()
        if self.n_layers is None and self.origin is None:
            raise ConfigError(
                "a draft model begins as some layers of the target model, --layers N, or as "
                "another model, --from BUNDLE: name one, or both"
            )


@dataclass(frozen=True, kw_only=True)
class DraftReport(DraftingReport):
    """What became of it. held_out: share of the target model's next tokens that it predicts."""

    n_layers: int
    n_tokens: int
    held_out: float

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields."""
        return {
            **super().to_dict(),
            "n_layers": self.n_layers,
            "n_tokens": self.n_tokens,
            "held_out": round(self.held_out, 4),
        }

    def text(self) -> str:
        """Returns what people read."""
        lines = [
            f"{self.bundle}: a draft model of {self.n_layers} layers and {self.n_bytes / 1e6:.1f} "
            f"MB, trained on {self.n_tokens:,} tokens",
            f"in other texts it predicts {self.held_out:.1%} of the model's own next tokens; "
            f"its vocabulary covers {self.covered:.1%}; quantised, it predicts "
            f"{self.quantised:.1%}",
            f"by kind of file: {self.kinds}",
            *self.warnings,
            *self.verdict(self.held_out),
        ]
        return "\n".join(lines) + "\n"


def train_bundle_draft(
    job: DraftJob, report: OnProgress, is_stopping: Callable[[], bool]
) -> DraftReport:
    """Writes the bundle that ``job`` asks for.

    Raises:
        ConfigError: The models, the corpus or an option are not fit for it.
        BundleError: A bundle is broken, or cannot be written.
    """
    with needs_train_extra():
        from edgedec.training.draft_models import train_draft as drafts
        from edgedec.training.heads.train_head import use_threads
        from edgedec.training.loop import TrainingPlan
    options = job.options
    check_destination(job.output, options.force)
    manifest = read_manifest(job.bundle)
    manifest.check_writes()
    training = TrainingPlan(
        options.epochs, 1, learning_rate=options.learning_rate, seed=options.seed
    )
    plan = drafts.DraftPlan(training, job.n_layers, options.vocabulary, job.scheme, job.loss)
    origin = drafts.Origin(job.bundle, manifest)
    if job.origin is not None:
        origin = drafts.Origin(job.origin, _same_tokens(job.origin, manifest))
    origin.kept(job.n_layers)
    clock = Clock(options.minutes, is_stopping)
    use_threads(options.n_threads)
    with features_of(job.bundle, manifest, options, job.output, report, clock) as (file, n_skipped):
        draft = drafts.train_draft(manifest, origin, file, plan, report, clock.is_over)
        sealed = drafts.put_draft(
            job.bundle, manifest, origin, draft, job.scheme, job.output, options.force
        )
        unseen = held_out_of(file.texts())
        quantised = share_drafted(job.output, sealed, unseen, options.n_threads)
        report("measure", 0, 0)
        speeds = measured_speeds(job.output, job.bundle, unseen, options.n_threads, is_stopping)
    assert sealed.draft_name is not None
    draft_files = set(sealed.models[sealed.draft_name].files) - set(manifest.target.files)
    measured = draft.trained.measured
    return DraftReport(
        bundle=job.output,
        origin=job.bundle,
        n_bytes=sum(sealed.files[path].n_bytes for path in draft_files),
        before=draft.trained.before,
        quantised=quantised,
        covered=measured.covered,
        by_kind=measured.by_kind,
        n_skipped=n_skipped,
        is_finite=draft.trained.is_finite,
        speeds=speeds,
        n_layers=draft.config.n_layers,
        n_tokens=draft.n_tokens,
        held_out=measured.by_depth[0],
    )


def _same_tokens(path: Path, target: BundleManifest) -> BundleManifest:
    """Returns the manifest of a bundle, whose tokens are those of ``target``."""
    manifest = read_manifest(path)
    if manifest.files[TOKENIZER_NAME].sha256 != target.files[TOKENIZER_NAME].sha256:
        raise ConfigError(
            f"{path} has another tokenizer than {target.name}: begin with a model of the same "
            "family, or with some layers of the target model, --layers N"
        )
    return manifest
