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


@dataclass(frozen=True)
class DraftReport:
    """What became of it.

    before: share of the target model's own choices found before training. held_out: after it.
    quantised: as the bundle holds it. covered: share that it can name.
    """

    bundle: Path
    n_layers: int
    n_tokens: int
    n_bytes: int
    before: float | None
    held_out: float
    quantised: float
    covered: float
    by_kind: dict[str, float]
    n_skipped: int
    is_finite: bool

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields."""
        return {
            "bundle": str(self.bundle),
            "n_layers": self.n_layers,
            "n_tokens": self.n_tokens,
            "n_bytes": self.n_bytes,
            "held_out_before": None if self.before is None else round(self.before, 4),
            "held_out": round(self.held_out, 4),
            "held_out_quantised": round(self.quantised, 4),
            "covered": round(self.covered, 4),
            "by_kind": {kind: round(share, 4) for kind, share in self.by_kind.items()},
            "n_skipped_files": self.n_skipped,
            "is_finite": self.is_finite,
        }

    def text(self) -> str:
        """Returns what people read."""
        kinds = ", ".join(f"{kind or 'no suffix'} {s:.1%}" for kind, s in self.by_kind.items())
        before = "" if self.before is None else f", before training {self.before:.1%}"
        lines = [
            f"{self.bundle}: a draft model of {self.n_layers} layers and {self.n_bytes / 1e6:.1f} "
            f"MB, trained on {self.n_tokens:,} tokens",
            f"of other texts it finds {self.held_out:.1%} of the model's own next tokens{before}; "
            f"it can name {self.covered:.1%} of them; quantised it finds {self.quantised:.1%}",
            f"by kind of file: {kinds}",
        ]
        if self.n_skipped:
            lines.append(f"{self.n_skipped} files are not UTF-8 text and were skipped")
        if not self.is_finite:
            lines.append("the loss was no number any more: the best before that was kept")
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
    assert sealed.draft_name is not None
    own = set(sealed.models[sealed.draft_name].files) - set(manifest.target.files)
    measured = draft.trained.measured
    return DraftReport(
        job.output,
        draft.config.n_layers,
        draft.n_tokens,
        sum(sealed.files[path].n_bytes for path in own),
        draft.trained.before,
        measured.by_depth[0],
        quantised,
        measured.covered,
        measured.by_kind,
        n_skipped,
        draft.trained.is_finite,
    )


def _same_tokens(path: Path, target: BundleManifest) -> BundleManifest:
    """Returns the manifest of a bundle, whose tokens are those of ``target``."""
    found = read_manifest(path)
    if found.files[TOKENIZER_NAME].sha256 != target.files[TOKENIZER_NAME].sha256:
        raise ConfigError(
            f"{path} has another tokenizer than {target.name}: begin with a model of the same "
            "family, or with some layers of the target model, --layers N"
        )
    return found
