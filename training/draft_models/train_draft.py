"""From features to a draft model in a bundle: some layers of a model, taught what the target says.

Sources: DistillSpec (Zhou et al., 2024) for the losses, FastDraft (Zafrir et al., 2024) for drafts
that begin as a pruned copy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from edgedec.export.heads.bundle_weights import BundleWeights
from edgedec.export.heads.graph import SHARED, contract_like, write_head
from edgedec.export.quantising.quantise import SCHEMES
from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.messages import ModelProto
from edgedec.models.blocks import head_weight
from edgedec.models.config import ModelConfig
from edgedec.models.errors import ConfigError
from edgedec.models.families import weight_shapes
from edgedec.models.graph import Capabilities
from edgedec.models.head_ids import write_head_ids
from edgedec.models.kv_maps import DRAFT_KV_MAPS
from edgedec.models.manifest import TOKENIZER_NAME, BundleManifest, fingerprint_of
from edgedec.models.model_entry import DRAFT_MODEL, ModelEntry
from edgedec.models.quant import FORMATS, QuantFormat
from edgedec.training.features.feature_file import FeatureFile
from edgedec.training.heads.train_head import check_scheme
from edgedec.training.loop import OnProgress, Trained, Trainer, TrainingPlan, TrainingTexts
from edgedec.training.losses import LOSSES
from edgedec.training.progress_file import ProgressFile
from edgedec.training.torch_decoder import TorchDecoder
from edgedec.training.variant import put_variant

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class DraftPlan:
    """What draft model shall be made.

    n_layers: how many of the model that it begins as are kept; all when None. n_logits: most tokens
    that it can name. scheme: how it is quantised, a key of `SCHEMES`. loss: a key of `LOSSES`.
    """

    training: TrainingPlan
    n_layers: int | None = None
    n_logits: int = 8192
    scheme: str = "int8"
    loss: str = "kl"

    def __post_init__(self) -> None:
        check_scheme(self.scheme)
        if self.loss not in LOSSES:
            raise ConfigError(f"got the loss {self.loss!r}, expected one of {', '.join(LOSSES)}")


@dataclass(frozen=True)
class Origin:
    """The model that a draft model begins as, the target model of ``bundle``."""

    bundle: Path
    manifest: BundleManifest

    @property
    def weights(self) -> BundleWeights:
        """Its weights."""
        return BundleWeights(self.bundle, self.manifest.target)

    def kept(self, n_layers: int | None) -> tuple[int, ...]:
        """Returns ``n_layers`` of its layers, the first and the last among them; all when None.

        Raises:
            ConfigError: It has not as many.
        """
        n_all = self.manifest.target.config.n_layers
        if n_layers is None:
            return tuple(range(n_all))
        if not 0 < n_layers <= n_all:
            raise ConfigError(
                f"--layers is {n_layers}, expected 1 to {n_all}, which {self.manifest.name} has"
            )
        return tuple(np.linspace(0, n_all - 1, n_layers).round().astype(int).tolist())


@dataclass(frozen=True)
class TrainedDraft:
    """A draft model: its configuration, all weights but the embedding, what it was measured at."""

    config: ModelConfig
    weights: dict[str, Float32]
    head_ids: npt.NDArray[np.int64]
    n_tokens: int
    trained: Trained


def train_draft(
    manifest: BundleManifest,
    origin: Origin,
    features: FeatureFile,
    plan: DraftPlan,
    report: OnProgress,
    is_over: Callable[[], bool] = lambda: False,
) -> TrainedDraft:
    """Returns a draft model for the target model of ``manifest``, trained on its ``features``.

    Raises:
        ConfigError: The model is of a kind that cannot be trained, there are too few texts, or the
            loss was no number from the beginning.
        OSError: The disk is full.
    """
    of = origin.manifest.target.config
    if of.n_experts:
        raise ConfigError("draft models that are mixtures of experts are not supported")
    if of.vocab_size != manifest.target.config.vocab_size:
        raise ConfigError(
            f"{origin.manifest.name} reads {of.vocab_size} tokens, the target model "
            f"{manifest.target.config.vocab_size}: begin with a model of the same tokenizer"
        )
    training_texts = TrainingTexts.of(features.texts(), plan.n_logits, manifest.stop_token_ids)
    kept = origin.kept(plan.n_layers)
    config = _config(of, kept, len(training_texts.head_ids))
    weights = _initial_weights(origin.weights, of, config, kept, training_texts)
    known = (
        plan.training,
        plan.n_logits,
        plan.loss,
        kept,
        features.lengths,
        fingerprint_of(origin.manifest, origin.manifest.target_name),
    )
    trainer = Trainer(
        TorchDecoder(config, weights, max(features.lengths)),
        training_texts,
        plan.training,
        ProgressFile(features.folder / "draft.npz", known),
        is_start_worth_keeping=True,
        loss=LOSSES[plan.loss],
    )
    trained = trainer.train(report, is_over)
    del weights[SHARED]  # of which only some rows are there
    weights_ = weights | trained.weights
    return TrainedDraft(config, weights_, training_texts.head_ids, training_texts.n_tokens, trained)


def put_draft(
    bundle: Path,
    manifest: BundleManifest,
    origin: Origin,
    draft: TrainedDraft,
    scheme: str,
    destination: Path,
    is_overwrite_allowed: bool,
) -> BundleManifest:
    """Writes a bundle that has ``draft`` beside all that ``bundle`` has; returns its manifest.

    A draft model that it had is replaced, and so are maps from or to its KV cache. An embedding
    that is the target model's is shared with that.

    Raises:
        BundleError: The destination cannot be written; whatever was there is untouched.
    """
    is_shared = origin.manifest == manifest
    entry, formats = _entry(manifest, origin, draft, scheme, is_shared)

    def write(folder: Path) -> None:
        model = _fused(draft.config, formats, manifest)
        parent, graph = origin.weights, folder / entry.graph
        write_head(model, draft.weights, formats, parent, graph, is_shared=is_shared)
        assert entry.head_ids is not None
        write_head_ids(folder / entry.head_ids, draft.head_ids.astype(np.int32))

    others = dict(manifest.auxiliary)
    maps = others.pop(DRAFT_KV_MAPS, None)
    gone = [] if maps is None else [*maps.files]
    if (old := manifest.draft_name) is not None:
        graph = manifest.models[old].graph
        gone += [*manifest.models[old].files, str(PurePosixPath(graph).parent / TOKENIZER_NAME)]
    new = dataclasses.replace(
        manifest,
        models={manifest.target_name: manifest.target, DRAFT_MODEL: entry},
        auxiliary=others,
        verification=manifest.verification | {DRAFT_MODEL: _measures(draft)},
    )
    return put_variant(bundle, new, gone, entry.files, write, destination, is_overwrite_allowed)


def _config(of: ModelConfig, kept: tuple[int, ...], n_logits: int) -> ModelConfig:
    """Returns the configuration of some layers of a model, and some of its tokens."""
    return dataclasses.replace(
        of,
        n_layers=len(kept),
        layers=tuple(of.layers[i] for i in kept) if of.layers else (),
        is_head_tied=False,
        trimmed_head_size=n_logits,
    )


def _initial_weights(
    origin: BundleWeights,
    of: ModelConfig,
    config: ModelConfig,
    kept: tuple[int, ...],
    training_texts: TrainingTexts,
) -> dict[str, Float32]:
    """Returns the weights of the layers ``kept``, and rows of embedding and LM head."""
    weights: dict[str, Float32] = {}
    for name, shape in weight_shapes(config).items():
        parts = name.split(".")
        if parts[0] == "layers":
            parts[1] = str(kept[int(parts[1])])
        source = ".".join(parts)
        if name == SHARED:
            weights[name] = origin.matrix(name, training_texts.token_ids)
        elif name == "lm_head.weight":
            weights[name] = origin.matrix(head_weight(of), training_texts.head_ids)
        else:
            weights[name] = origin.matrix(source) if len(shape) == 2 else origin.vector(source)
    return weights


def _entry(
    manifest: BundleManifest, origin: Origin, draft: TrainedDraft, scheme: str, is_shared: bool
) -> tuple[ModelEntry, dict[str, QuantFormat]]:
    """Returns what a manifest states of the draft model, and the format of every matrix."""
    target, config = manifest.target, draft.config
    context = min(target.context, config.max_positions)
    matrices = [name for name, shape in weight_shapes(config).items() if len(shape) == 2]
    formats = dict.fromkeys(matrices, FORMATS[SCHEMES[scheme] or "f32"])
    formats[SHARED] = origin.manifest.target.format_of(SHARED)
    model = _fused(config, formats, manifest)
    can = Capabilities(
        trees=True, gates=True, row_stats=True, entry=True, hidden=(config.n_layers,)
    )
    folder = PurePosixPath(target.graph).parent
    entry = ModelEntry(
        kind=DRAFT_MODEL,
        graph=str(folder / "draft.onnx"),
        weights=(str(folder / "draft.bin"), *(target.weights if is_shared else ())),
        contract=contract_like(target.contract, model, config, can),
        config=config,
        context=context,
        tensor_formats={name: fmt.name for name, fmt in formats.items()},
        head_ids=str(folder / "draft_ids.bin"),
        name=f"{origin.manifest.name}, {config.n_layers} layers, distilled",
        licence=origin.manifest.licence,
    )
    return entry, formats


def _fused(
    config: ModelConfig, formats: dict[str, QuantFormat], manifest: BundleManifest
) -> ModelProto:
    """Returns the draft model's graph; its weights are references to bytes not yet written."""
    graph = emit_portable(config, (config.n_layers,))
    return fuse(graph, config, formats, kv_format=manifest.target.contract.kv.format)


def _measures(draft: TrainedDraft) -> dict[str, float]:
    first = draft.trained.measured.by_depth[0]
    return {"held_out": round(first, 4), "held_out_before": round(draft.trained.before or 0.0, 4)}
