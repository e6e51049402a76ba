"""Joins the two sides of a draft head: features from the runtime, training and export."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, cycle
from pathlib import Path
from typing import Any

from edgedec.apps.benchmarks.prompts_data import read_prompts
from edgedec.apps.replay_buffer import ReplayBuffer
from edgedec.apps.training.corpus import Corpus
from edgedec.apps.training.features import WINDOW, FeatureReader, beginnings
from edgedec.apps.training.head_check import share_found
from edgedec.export.bundle import check_destination
from edgedec.export.heads.feature_file import FeatureFile, held_out_of
from edgedec.models.draft_heads import ADAPTER, EAGLE, HeadEntry
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import BundleManifest, fingerprint_of, read_manifest
from edgedec.models.model_entry import ModelEntry
from edgedec.runtime.cores.machine import physical_cores
from edgedec.runtime.engine import Engine
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions

REPLAY = "replay"
"""Kind of texts in which drafts did not come true."""

_READING = 0.5
"""Share of the minutes after which no more is read."""


@dataclass(frozen=True)
class HeadJob:
    """What `edgedec train head` or `edgedec train exit` was asked for; see their options.

    exit_layer: layers behind which an adapter ends the model; None for a head on its last ones.
    """

    bundle: Path
    corpus: tuple[Path, ...]
    replay: tuple[Path, ...]
    prompts: tuple[Path, ...]
    output: Path
    max_tokens: int
    n_self: int
    epochs: int
    minutes: float | None
    n_logits: int
    scheme: str
    rollout: int
    learning_rate: float
    seed: int
    features: Path | None
    cache_mb: int
    threads: int | None
    force: bool
    is_continued: bool
    exit_layer: int | None = None

    def __post_init__(self) -> None:
        if not (self.corpus or self.replay or self.prompts):
            raise ConfigError(
                "there is nothing to learn from: name texts with --corpus or --from, or "
                "prompts with --prompts and --self"
            )
        if self.prompts and not self.n_self:
            raise ConfigError(
                "--prompts are for what the model writes itself: say how much, --self"
            )

    @property
    def feature_folder(self) -> Path:
        """Where features are kept."""
        return self.features or self.output.absolute().with_name(f".{self.output.name}.features")


@dataclass(frozen=True)
class HeadReport:
    """What became of it.

    covered: share of the model's own choices that the head can name. quantised: share that it
    finds as the bundle holds it. before: share that the head found which it went on from.
    """

    bundle: Path
    entry: HeadEntry
    n_bytes: int
    covered: float
    quantised: float
    before: float | None
    by_kind: dict[str, float]
    n_skipped: int
    is_finite: bool

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields."""
        return {
            "bundle": str(self.bundle),
            "n_tokens": self.entry.n_tokens,
            "n_bytes": self.n_bytes,
            "vocabulary": self.entry.head.config.trimmed_head_size,
            "hidden_layers": list(self.entry.hidden_layers),
            "held_out": list(self.entry.held_out),
            "held_out_quantised": round(self.quantised, 4),
            "held_out_before": None if self.before is None else round(self.before, 4),
            "covered": round(self.covered, 4),
            "by_kind": {kind: round(share, 4) for kind, share in self.by_kind.items()},
            "n_skipped_files": self.n_skipped,
            "is_finite": self.is_finite,
        }

    def text(self) -> str:
        """Returns what people read."""
        depths = ", ".join(f"{share:.1%}" for share in self.entry.held_out)
        kinds = ", ".join(f"{kind or 'no suffix'} {s:.1%}" for kind, s in self.by_kind.items())
        what = "a draft head"
        if self.entry.kind == ADAPTER:
            what = f"an exit behind layer {self.entry.hidden_layers[0]} with an adapter"
        lines = [
            f"{self.bundle}: {what} of {self.n_bytes / 1e6:.1f} MB, trained on "
            f"{self.entry.n_tokens:,} tokens",
            f"of other texts it finds {depths} of the model's own tokens, by depth; it can name "
            f"{self.covered:.1%} of them; quantised it finds {self.quantised:.1%} of the next ones",
            f"the first by kind of file: {kinds}",
        ]
        if self.before is not None:
            lines.append(f"the head that it went on from found {self.before:.1%} of these")
        if self.n_skipped:
            lines.append(f"{self.n_skipped} files are no UTF-8 text and were skipped")
        if not self.is_finite:
            lines.append("the loss was no number any more: the best head before that was kept")
        return "\n".join(lines) + "\n"


def train_bundle_head(
    job: HeadJob, report: Callable[[str, int, int], None], is_stopping: Callable[[], bool]
) -> HeadReport:
    """Writes the bundle that ``job`` asks for.

    Raises:
        ConfigError: The bundle's model, the corpus or an option is not fit for it.
        BundleError: A bundle is broken, or cannot be written.
    """
    try:
        from edgedec.export.heads import train_head as heads
        from edgedec.export.heads.training import TrainingPlan
    except ImportError as error:
        raise ConfigError(
            f"training needs {error.name}, which is not installed: pip install 'edgedec[train]'"
        ) from None
    check_destination(job.output, job.force)
    manifest = read_manifest(job.bundle)
    plan = heads.HeadPlan(
        TrainingPlan(job.epochs, job.rollout, learning_rate=job.learning_rate, seed=job.seed),
        job.n_logits,
        job.scheme,
        job.is_continued,
        EAGLE if job.exit_layer is None else ADAPTER,
    )
    layers = _checked_layers(manifest.target, job.exit_layer)
    _check_head(job, manifest)
    started_s = time.monotonic()

    def is_over(share: float = 1.0) -> bool:
        spent_s = time.monotonic() - started_s
        is_late = job.minutes is not None and spent_s > 60 * share * job.minutes
        return is_late or is_stopping()

    file, n_skipped = _read(job, manifest, layers, report, lambda: is_over(_READING))
    heads.use_threads(job.threads or physical_cores())
    head = heads.train_head(job.bundle, manifest, file, len(layers), plan, report, is_over)
    entry = heads.head_entry(
        head,
        manifest.target,
        fingerprint_of(manifest, manifest.target_name),
        layers,
        job.scheme,
        ", ".join(map(str, (*job.corpus, *job.replay, *job.prompts))),
    )
    sealed = heads.put_head(job.bundle, manifest, head, entry, job.output, job.force)
    threads = job.threads or physical_cores()
    unseen = held_out_of(file.texts())
    quantised = share_found(job.output, sealed, unseen, threads)
    before = share_found(job.bundle, manifest, unseen, threads) if job.is_continued else None
    if job.features is None and not is_stopping():
        shutil.rmtree(job.feature_folder, ignore_errors=True)
    own = [path for path in entry.files if path not in manifest.target.files]
    measured = head.trained.measured
    return HeadReport(
        job.output,
        entry,
        sum(sealed.files[path].n_bytes for path in own),
        measured.covered,
        quantised,
        before,
        measured.by_kind,
        n_skipped,
        head.trained.is_finite,
    )


def _read(
    job: HeadJob,
    manifest: BundleManifest,
    layers: tuple[int, ...],
    report: Callable[[str, int, int], None],
    is_over: Callable[[], bool],
) -> tuple[FeatureFile, int]:
    """Returns the features of the corpus, and how many of its files were skipped."""
    config = manifest.target.config
    known = fingerprint_of(manifest, manifest.target_name), layers
    replayed = [
        (REPLAY, text)
        for path in job.replay
        for text in ReplayBuffer.of_bundle(path, job.bundle).texts(config.vocab_size)
    ]
    key = (*known, *map(Path.absolute, (*job.corpus, *job.prompts)), *replayed)
    file = FeatureFile(job.feature_folder, key, len(layers) * config.hidden_size)
    n_most = min(job.max_tokens, job.cache_mb * 10**6 // file.token_nbytes)
    n_own = min(job.n_self, n_most)
    corpus = Corpus(job.corpus, min(WINDOW, manifest.target.context))
    with load(job.bundle, EngineOptions(threads=job.threads, draft=False)) as engine:
        encode, epsilon = engine.tokenizer.encode, config.rms_norm_eps
        reader = FeatureReader(engine, layers, epsilon, file, report, is_over)
        reader.read(chain(replayed, corpus.windows(encode)), n_most - n_own)
        reader.write(_prompts(job, engine), n_own)
    return file, corpus.n_skipped


def _prompts(job: HeadJob, engine: Engine) -> Iterator[list[int]]:
    """Yields what the model is asked, over and over; without prompts beginnings of the corpus."""
    if not job.prompts:
        windows = Corpus(job.corpus, min(WINDOW, engine.context)).windows(engine.tokenizer.encode)
        return beginnings(windows)
    is_chat = engine.has_chat_template
    return cycle([prompt.encode(engine, is_chat) for prompt in read_prompts(job.prompts)])


def _check_head(job: HeadJob, manifest: BundleManifest) -> None:
    """Raises a ConfigError where a head is to be continued that cannot be."""
    if not job.is_continued:
        return
    if manifest.head is None or manifest.head.kind != EAGLE:
        raise ConfigError(f"{job.bundle} has no draft head to continue: leave --continue away")
    target = manifest.target
    manifest.head.check_fits(
        fingerprint_of(manifest, manifest.target_name), target.config, target.contract.can.hidden
    )


def _checked_layers(entry: ModelEntry, exit_layer: int | None) -> tuple[int, ...]:
    """Returns the layers whose hidden states a head gets, the last one included, or an adapter."""
    n_layers, layers = entry.config.n_layers, entry.contract.can.hidden
    if exit_layer is not None:
        is_there = exit_layer in layers and 0 < exit_layer < n_layers
        if not (is_there and entry.contract.can.entry):
            raise ConfigError(
                f"this bundle's graph returns the hidden states of the layers {list(layers)}, an "
                f"exit behind layer {exit_layer} of {n_layers} needs its own: export the model "
                f"again with --exit {exit_layer}"
            )
        return (exit_layer,)
    if len(layers) < 2 or layers[-1] != n_layers:
        wanted = f"{max(1, n_layers // 14)},{n_layers // 2}"
        raise ConfigError(
            f"this bundle's graph returns the hidden states of the layers {list(layers)}, a draft "
            f"head needs those of a low, a middle and the last one: export the model again with "
            f"--hidden-layers {wanted}"
        )
    return layers
