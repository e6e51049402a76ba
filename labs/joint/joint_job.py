"""Joins the two sides of joint training: texts of a corpus; maps and the model that reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedec.export.bundle import check_destination, writing_to
from edgedec.models.kv_maps import MapsEntry
from edgedec.models.manifest import read_manifest
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.system.processors import physical_cores
from edgedec.training.features.corpus import Corpus
from edgedec.training.options import Clock, needs_train_extra
from edgedec.training.report import STOPPED_BY_NAN

if TYPE_CHECKING:
    from edgedec.labs.joint.train_maps import Score
    from edgedec.training.loop import OnProgress

WINDOW = 256
"""Tokens of a text; their attention and their logits are in memory at once."""

_SHORTEST = 16


@dataclass(frozen=True)
class JointJob:
    """What `edgedec train joint` was asked for; see its options."""

    bundle: Path
    output: Path
    corpus: tuple[Path, ...]
    max_tokens: int
    epochs: int
    minutes: float | None
    learning_rate: float
    seed: int
    threads: int | None
    force: bool

    @property
    def progress_file(self) -> Path:
        """Where the training stands."""
        return self.output.absolute().with_name(f".{self.output.name}.joint.npz")


@dataclass(frozen=True)
class JointReport:
    """What became of it. before, after: what is lost on texts that were not trained on."""

    bundle: Path
    entry: MapsEntry
    n_tokens: int
    before: Score
    after: Score
    has_reader: bool
    is_finite: bool

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields."""
        return {
            "bundle": str(self.bundle),
            "kind": self.entry.kind,
            "n_tokens": self.n_tokens,
            "before": dataclasses.asdict(self.before),
            "after": dataclasses.asdict(self.after),
            "is_finite": self.is_finite,
        }

    def text(self) -> str:
        """Returns what people read."""
        before, after = self.before, self.after
        what = "maps and the model they read" if self.has_reader else "maps"
        lines = [
            f"{self.bundle}: {what}, trained on {self.n_tokens:,} tokens; before and after, on "
            "other texts:",
            f"first choices of the target model that stay: {before.agreement:.1%}, "
            f"{after.agreement:.1%}",
            f"its cross-entropy over predicted rows: {before.target:.3f}, {after.target:.3f}",
            f"error of keys and values, over layers: {before.rows:.2f}, {after.rows:.2f}; of their "
            f"variance {before.missed:.1%}, {after.missed:.1%} is missed",
        ]
        if self.has_reader:
            lines.append(f"the reader's cross-entropy: {before.reader:.3f}, {after.reader:.3f}")
        if not self.is_finite:
            lines.append(STOPPED_BY_NAN)
        return "\n".join(lines) + "\n"


def train_bundle_maps(
    job: JointJob, report: OnProgress, is_stopping: Callable[[], bool]
) -> JointReport:
    """Writes the bundle that ``job`` asks for.

    Raises:
        ConfigError: The bundle has no maps, the corpus is too small, or torch is missing.
        BundleError: A bundle is broken, or cannot be written.
    """
    with needs_train_extra():
        from edgedec.labs.joint.train_maps import maps_of, put_maps, train_maps
        from edgedec.training.heads.train_head import use_threads
        from edgedec.training.loop import TrainingPlan
    check_destination(job.output, job.force)
    with writing_to(job.output):
        job.output.absolute().parent.mkdir(parents=True, exist_ok=True)
    manifest = read_manifest(job.bundle)
    maps_of(manifest)  # complains before anything is read
    is_over = Clock(job.minutes, is_stopping).is_over
    use_threads(job.threads or physical_cores())
    plan = TrainingPlan(job.epochs, learning_rate=job.learning_rate, batch=2, seed=job.seed)
    texts = _texts(job, manifest.target.context)
    trained = train_maps(job.bundle, manifest, texts, plan, job.progress_file, report, is_over)
    corpus = ", ".join(map(str, job.corpus))
    entry = put_maps(job.bundle, manifest, trained, corpus, job.output, job.force)
    if not is_stopping():
        job.progress_file.unlink(missing_ok=True)
    return JointReport(
        job.output,
        entry,
        trained.n_tokens,
        trained.before,
        trained.after,
        bool(trained.reader),
        trained.is_finite,
    )


def _texts(job: JointJob, context: int) -> list[list[int]]:
    """Returns windows of the corpus."""
    texts: list[list[int]] = []
    n_left = job.max_tokens
    with load(job.bundle, EngineOptions(threads=job.threads, draft=False)) as engine:
        windows = Corpus(job.corpus, min(WINDOW, context)).windows(engine.tokenizer.encode)
        for _, tokens in windows:
            if n_left < len(tokens):
                break
            if len(tokens) >= _SHORTEST:
                texts.append(tokens)
                n_left -= len(tokens)
    return texts
