"""Improves the head of a bundle with texts that `--adapt` kept, in place, if that makes it better.

Source: Online Speculative Decoding (Liu et al., 2024), but for whole heads and while nobody asks.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedec.export.quantising.quantise import SCHEMES
from edgedec.models.draft_heads import DRAFT_HEADS, HeadEntry
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import BundleManifest, read_manifest
from edgedec.runtime.engine.replay_buffer import ReplayBuffer
from edgedec.training.heads.adapt_folder import AdaptFolder
from edgedec.training.heads.head_job import HeadJob, train_bundle_head
from edgedec.training.options import TrainingOptions
from edgedec.training.variant import put_variant

if TYPE_CHECKING:
    from edgedec.training.loop import OnProgress

CLEAR = 0.01
"""Share of tokens that a head has to predict more than the one before, to take its place."""


@dataclass(frozen=True)
class AdaptReport:
    """What became of it. before, after: shares of the next tokens of texts held out."""

    bundle: Path
    before: float
    after: float
    n_tokens: int

    @property
    def is_swapped(self) -> bool:
        """Whether the bundle has the new head."""
        return self.after >= self.before + CLEAR

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields."""
        return {
            "bundle": str(self.bundle),
            "is_swapped": self.is_swapped,
            "held_out_before": round(self.before, 4),
            "held_out_after": round(self.after, 4),
            "n_tokens": self.n_tokens,
        }

    def text(self) -> str:
        """Returns what people read."""
        shares = f"{self.before:.1%} before, {self.after:.1%} after"
        if not self.is_swapped:
            return (
                f"{self.bundle} is as it was: of your latest texts the new head predicts hardly "
                f"more ({shares})\n"
            )
        return (
            f"{self.bundle} has a better head: of the next tokens of your latest texts it predicts "
            f"{shares}; `edgedec train adapt {self.bundle} --undo` takes it back\n"
        )


def adapt_head(
    bundle: Path,
    replay: Path,
    options: TrainingOptions,
    report: OnProgress,
    is_stopping: Callable[[], bool],
) -> AdaptReport:
    """Trains the head of ``bundle`` further; swaps it in whole, if it is better.

    If it is stopped, the next call goes on with the same texts.

    Raises:
        ConfigError: There is no head that can be trained further, too few texts are new, another
            process trains it, or it was stopped.
        BundleError: The bundle is broken, or cannot be written.
    """
    folder = AdaptFolder(bundle)
    manifest = read_manifest(folder.bundle)
    manifest.check_writes()
    head = _trainable(folder.bundle, manifest)
    with folder.alone():
        last = folder.begin(ReplayBuffer.of_bundle(replay, folder.bundle))
        trial = folder.path / "trial.edgedec"
        job = HeadJob(
            folder.bundle,
            trial,
            dataclasses.replace(options, features=folder.features, force=True),
            kind=head.kind,
            scheme=_scheme(head),
            n_steps=max(3, head.head.config.n_layers),
            replay=(replay,),
            is_continued=True,
            last=last,
            is_timed=False,
        )
        made = train_bundle_head(job, report, is_stopping)
        if is_stopping():
            raise ConfigError(f"stopped: {folder.bundle} is as it was")
        assert made.before is not None
        done = AdaptReport(bundle, made.before, made.quantised, made.entry.n_tokens)
        if done.is_swapped:
            _swap(folder, manifest, trial)
        folder.end(last)
        for path in (trial, folder.features):
            shutil.rmtree(path, ignore_errors=True)
    return done


def undo(bundle: Path) -> None:
    """Puts the head back that ``bundle`` had before the latest swap.

    Raises:
        ConfigError: There is none, or it does not fit.
        BundleError: It is damaged, or the bundle cannot be written.
    """
    folder = AdaptFolder(bundle)
    if not folder.path.exists():
        folder.kept()  # raises, before the next line would make the folder
    with folder.alone():
        folder.restore_head()


def _swap(folder: AdaptFolder, known: BundleManifest, trial: Path) -> None:
    """Puts the bundle at ``trial`` in the place of the one that training went on from."""
    if read_manifest(folder.bundle) != known:
        raise ConfigError(f"{folder.bundle} was changed meanwhile: it stays as it is")
    folder.keep_head(known)
    new = read_manifest(trial)
    put_variant(trial, new, (), (), lambda _: None, folder.bundle, is_overwrite_allowed=True)


def _trainable(bundle: Path, manifest: BundleManifest) -> HeadEntry:
    head = manifest.head
    if head is None or head.kind not in DRAFT_HEADS:
        has = "no draft head" if head is None else f"a head of its publisher, {head.kind}"
        raise ConfigError(
            f"{bundle} has {has}, expected one of {', '.join(DRAFT_HEADS)} to improve: export it "
            "with `edgedec-heads` installed, or train one with `edgedec train head`"
        )
    return head


def _scheme(head: HeadEntry) -> str:
    """Returns the scheme that a head was quantised by."""
    format_name = head.head.tensor_formats["lm_head.weight"]
    return next(name for name, fmt in SCHEMES.items() if fmt == format_name)
