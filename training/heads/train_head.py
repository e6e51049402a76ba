"""From features to a draft head in a bundle."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from edgedec.export.heads.bundle_weights import BundleWeights
from edgedec.export.heads.files import head_model, write_head_files
from edgedec.export.heads.head_file import HeadFacts, model_digest, write_head_file
from edgedec.export.heads.mtp_graph import joined_model
from edgedec.export.quantising.quantise import SCHEMES, quantize_rows
from edgedec.models.config import ModelConfig
from edgedec.models.draft_heads import (
    ADAPTER,
    EAGLE,
    INPUT,
    LIGHT_HEADS,
    TOKEN_NORM,
    HeadEntry,
    feature_width,
    head_config,
    head_shapes,
)
from edgedec.models.errors import ConfigError
from edgedec.models.head_ids import read_head_ids
from edgedec.models.manifest import BundleManifest
from edgedec.models.model_entry import ModelEntry
from edgedec.models.quant import FORMATS
from edgedec.training.features.feature_file import FeatureFile, TextFeatures
from edgedec.training.heads.torch_head import TorchHead
from edgedec.training.loop import OnProgress, Trained, Trainer, TrainingPlan, TrainingTexts
from edgedec.training.progress_file import ProgressFile
from edgedec.training.variant import put_variant

Float32 = npt.NDArray[np.float32]

FOUR_BITS = "q4_0"
"""Format whose rounding is part of the training."""

LIGHT_BATCH = 40
"""Pieces of a step that light heads learn from."""

_PIECE = 8
"""Least tokens of such a piece. Light heads look at no others: a step over pieces of many texts
teaches more than one over as many tokens of few, and many small steps more than few large ones."""

_OFTEN = 2
"""Times that the model has to say a token in texts, for a head to name it."""

_SPREAD = 0.02
"""Standard deviation of weights that begin at random."""


def check_scheme(scheme: str) -> None:
    """Raises a ConfigError unless what is trained can be quantised by ``scheme``."""
    if SCHEMES.get(scheme) is None or scheme == "mixed":
        known = [name for name, fmt in SCHEMES.items() if fmt and name != "mixed"]
        raise ConfigError(f"a head is quantised as {', '.join(known)}, got {scheme!r}")


@dataclass(frozen=True)
class HeadPlan:
    """What head shall be made.

    n_logits: most tokens that it can name. scheme: how it is quantised, a key of `SCHEMES`.
    is_continued: it begins as the head that the bundle has, and can name what that can. kind: one
    of `HEAD_KINDS` that is trained: `ADAPTER` with one step, light heads with one for each.
    """

    training: TrainingPlan
    n_logits: int = 8192
    scheme: str = "int8"
    is_continued: bool = False
    kind: str = EAGLE

    def __post_init__(self) -> None:
        check_scheme(self.scheme)

    def config(self, target: ModelConfig, n_logits: int) -> ModelConfig:
        """Returns the configuration of the head, for a model of the configuration ``target``."""
        return head_config(target, n_logits, self.kind, self.training.n_steps)


@dataclass(frozen=True)
class TrainedHead:
    """A head: its kind and configuration, all weights of its own, and what it was measured at."""

    kind: str
    config: ModelConfig
    weights: dict[str, Float32]
    head_ids: npt.NDArray[np.int64]
    n_tokens: int
    trained: Trained


def train_head(
    bundle: Path,
    manifest: BundleManifest,
    features: FeatureFile,
    n_layers: int,
    plan: HeadPlan,
    report: OnProgress,
    is_over: Callable[[], bool] = lambda: False,
) -> TrainedHead:
    """Returns a head of the target model of ``bundle``, trained on ``features`` of ``n_layers``.

    Raises:
        ConfigError: The model is of a kind that has no heads, there are too few texts, or the loss
            was no number from the beginning.
        OSError: The disk is full.
    """
    target, before = manifest.target, manifest.head if plan.is_continued else None
    training_texts = TrainingTexts.of(features.texts(), plan.n_logits, manifest.stop_token_ids)
    parent = BundleWeights(bundle, target)
    if before is None:
        weights = initial_weights(parent, target, training_texts, n_layers, plan)
    else:
        known_ids = _nameable(bundle, before.head)
        named = named_instead(known_ids, training_texts.trained, manifest.stop_token_ids)
        training_texts = dataclasses.replace(training_texts, head_ids=named)
        weights = continued_weights(parent, BundleWeights.of_head(bundle, before), training_texts)
    config = plan.config(target.config, len(training_texts.head_ids))
    old = [manifest.files[path].sha256 for path in before.files] if before else []
    is_four_bit = SCHEMES[plan.scheme] == FOUR_BITS
    if is_four_bit:  # what the model gave is rounded once, all else as it is trained
        lm_head = quantize_rows(weights["lm_head.weight"], FORMATS[FOUR_BITS])
        weights["lm_head.weight"] = lm_head.dequantize()
    known = plan.training, plan.n_logits, features.lengths, old, is_four_bit
    file = ProgressFile(features.folder / f"{plan.kind}.npz", known)
    head = TorchHead(config, weights, max(features.lengths), plan.kind, is_four_bit)
    n_piece = max(_PIECE, 2 * plan.training.n_steps)
    shown = training_texts.in_pieces(n_piece) if plan.kind in LIGHT_HEADS else training_texts
    trainer = Trainer(head, shown, plan.training, file, is_start_worth_keeping=before is not None)
    trained = trainer.train(report, is_over)
    weights.pop("embed_tokens.weight", None)  # the bundle has it
    n_tokens = training_texts.n_tokens + (before.n_tokens if before else 0)
    all_weights = weights | trained.weights
    return TrainedHead(plan.kind, config, all_weights, training_texts.head_ids, n_tokens, trained)


def initial_weights(
    parent: BundleWeights,
    target: ModelEntry,
    training_texts: TrainingTexts,
    n_layers: int,
    plan: HeadPlan,
) -> dict[str, Float32]:
    """Returns what training begins with: the model's last layer, norm and rows of its LM head.

    The residual stream begins as the last layer's normed hidden state, or the head's own output; an
    adapter's as what its exit gives. Light heads add nothing to it yet.
    """
    config = target.config
    size, rng = config.hidden_size, np.random.default_rng(plan.training.seed)
    last = f"layers.{config.n_layers - 1}."
    head_config = plan.config(config, len(training_texts.head_ids))
    width = feature_width(config, n_layers, plan.kind, head_config.n_layers)
    weights: dict[str, Float32] = {}
    for name, shape in head_shapes(head_config, width, plan.kind).items():
        source = name.replace("layers.0.", last)
        if name == TOKEN_NORM:
            weights[name] = np.ones(size, np.float32)
        elif name == INPUT and plan.kind == ADAPTER:
            weights[name] = np.eye(size, dtype=np.float32)
        elif name == INPUT:
            made = _SPREAD * rng.standard_normal(shape, np.float32)
            made[:, -2 * size : -size] += np.diag(parent.vector("norm.weight"))
            made[:, -size:] += np.eye(size, dtype=np.float32)
            weights[name] = made
        elif plan.kind in LIGHT_HEADS and name.startswith("layers."):
            made = _SPREAD * rng.standard_normal(shape, np.float32)
            weights[name] = 0 * made if "down_proj" in name else made
        elif name == "embed_tokens.weight":
            weights[name] = parent.matrix(name, training_texts.token_ids)
        elif name == "lm_head.weight":
            whole = "embed_tokens.weight" if config.is_head_tied else name
            weights[name] = parent.matrix(whole, training_texts.head_ids)
        else:
            weights[name] = parent.matrix(source) if len(shape) == 2 else parent.vector(source)
    return weights


def continued_weights(
    parent: BundleWeights, stored: BundleWeights, training_texts: TrainingTexts
) -> dict[str, Float32]:
    """Returns what training goes on with: the weights of ``stored``, a head of ``parent``."""

    def of(name: str) -> Float32:
        if name == "embed_tokens.weight":
            return parent.matrix(name, training_texts.token_ids)
        if name == "lm_head.weight":
            whole = "embed_tokens.weight" if parent.entry.config.is_head_tied else name
            return parent.matrix(whole, training_texts.head_ids)
        return stored.matrix(name) if len(stored.shapes[name]) == 2 else stored.vector(name)

    return {name: of(name) for name in stored.shapes}


def _nameable(bundle: Path, head: ModelEntry) -> npt.NDArray[np.int64]:
    """Returns the tokens that a head can name."""
    assert head.head_ids is not None
    return read_head_ids(bundle / head.head_ids, head.config.vocab_size).astype(np.int64)


def named_instead(
    known: npt.NDArray[np.int64], texts: Sequence[TextFeatures], always: Sequence[int]
) -> npt.NDArray[np.int64]:
    """Returns as many tokens as ``known``, with those that ``texts`` need in place of rare ones.

    What the model said often is named. For each token that comes in, the one with the largest id
    that the texts do not need goes: tokenizers number common tokens first.
    """
    counts = Counter(np.concatenate([text.top_ids[:, 0] for text in texts]).tolist())
    needed = {token for token, n in counts.items() if n >= _OFTEN} | set(always)
    named = set(known.tolist())
    missing = sorted(needed - named, key=lambda token: -counts[token])
    idle = sorted(named - needed)
    n = min(len(missing), len(idle))
    return np.array(sorted(named - set(idle[len(idle) - n :]) | set(missing[:n])), np.int64)


def put_head(
    bundle: Path,
    manifest: BundleManifest,
    head: TrainedHead,
    entry: HeadEntry,
    destination: Path,
    is_overwrite_allowed: bool,
) -> BundleManifest:
    """Writes a bundle that has ``head`` beside all that ``bundle`` has; returns its manifest.

    Raises:
        BundleError: The destination cannot be written; whatever was there is untouched.
    """
    parent = BundleWeights(bundle, manifest.target)

    def write(folder: Path) -> None:
        write_head_files(parent, entry, head.weights, head.head_ids, folder)

    old = manifest.head.files if manifest.head is not None else ()
    new = dataclasses.replace(manifest, head=entry)
    return put_variant(bundle, new, old, entry.files, write, destination, is_overwrite_allowed)


def head_entry(
    head: TrainedHead,
    target: ModelEntry,
    fingerprint: str,
    hidden_layers: Sequence[int],
    scheme: str,
    corpus: str,
) -> HeadEntry:
    """Returns what a manifest states of ``head``; its files lie beside the target model's.

    fingerprint: of the target model.
    """
    model = head_model(head.config, target, head.kind, len(hidden_layers), scheme)
    measured = head.trained.measured
    return HeadEntry(
        kind=head.kind,
        model=fingerprint,
        head=model,
        hidden_layers=tuple(hidden_layers),
        corpus=corpus,
        n_tokens=head.n_tokens,
        held_out=tuple(round(share, 4) for share in measured.by_depth),
        joined=joined_model(target, model) if head.kind in LIGHT_HEADS else None,
    )


def share_head(
    path: Path,
    bundle: Path,
    manifest: BundleManifest,
    head: TrainedHead,
    entry: HeadEntry,
    scheme: str,
) -> None:
    """Writes ``head``, which ``entry`` describes, to a file by itself.

    Raises:
        ConfigError: The file cannot be written.
    """
    config = manifest.target.config
    facts = HeadFacts(
        kind=entry.kind,
        model=model_digest(BundleWeights(bundle, manifest.target), config),
        hidden_layers=entry.hidden_layers,
        n_heads=head.config.n_layers,
        scheme=scheme,
        corpus=entry.corpus,
        n_tokens=entry.n_tokens,
        held_out=entry.held_out,
    )
    write_head_file(path, facts, head.weights, head.head_ids)


def use_threads(n_threads: int) -> None:
    """Has torch compute with so many threads, and the same way each time."""
    torch.set_num_threads(n_threads)
    torch.use_deterministic_algorithms(True)
