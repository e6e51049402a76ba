"""The phases that every compiler's models share: before their graph is made, and after."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgedec.export.checkpoints.lora import Merged
from edgedec.export.checkpoints.sentence_files import PublishedEmbedding
from edgedec.export.compilers import (
    check_bidirectional,
    check_encoder,
    check_recurrence,
    find_compiler,
)
from edgedec.export.heads.head_tokens import choose_head_ids
from edgedec.export.phases.model_export import Phases
from edgedec.export.phases.recipe_model import ENCODER_NAME, RecipeModel
from edgedec.export.phases.shortened import Shortened
from edgedec.export.phases.trimmed_head import TrimmedHead
from edgedec.export.quantising.calibration.phase import calibrate
from edgedec.export.quantising.quantise import Even, Quantized, measure_errors
from edgedec.export.verifying.verify import N_TOKENS, check_error, check_spread, verify_logits
from edgedec.export.verifying.weights_check import INTERRUPTED, check_weights_read
from edgedec.models.errors import CheckpointError, ConfigError
from edgedec.models.families import matrices
from edgedec.models.final_norm import write_final_norm
from edgedec.models.head_ids import write_head_ids
from edgedec.models.kv_formats import find_kv_format
from edgedec.models.manifest import DENSE_NAME
from edgedec.models.model_entry import DRAFT_MODEL, TARGET_MODEL, ModelEntry
from edgedec.models.pooling import EmbeddingConfig, write_dense
from edgedec.models.quant import FORMATS

FINAL_NORM_NAME = "final_norm.bin"
HEAD_IDS_NAME = "head_ids.bin"
MAX_MATRIX_ERROR = 0.5
"""Error of a matrix, relative to its size, above which an export warns."""


def recipe_phases(compiler: str) -> Phases:
    """Returns the phases of a model that ``compiler`` makes the graph of."""
    first = ("check weights", check_weights), ("quantise", quantise)
    return (*first, *find_compiler(compiler).PHASES, ("verify", verify))


def configure(model: RecipeModel) -> None:
    """How long and how deep the graph is."""
    config, context = model.source.config, model.config.context
    check_recurrence(model.compiler, config)
    check_bidirectional(model.compiler, config)
    if config.fills_masks and (model.config.draft or model.config.exit or model.config.head):
        raise ConfigError(
            f"{model.source.name} fills masks in, which neither drafts nor checks drafts: export "
            "it without --draft, --exit and --head"
        )
    check_encoder(model.compiler, config)
    _check_embedder(model)
    _check_beside_encoder(model)
    usual = model.device.usual_context or config.max_positions
    if model.embedding is not None:
        usual = model.embedding.max_tokens or usual
    model.context = context or min(usual, config.max_positions)
    if model.kind == DRAFT_MODEL:
        model.context = min(model.context, config.max_positions)
        model.warnings += [
            f"{model.source.name}: {line}" for line in [model.source.left_out] if line
        ]
    if model.context > config.max_positions:
        raise ConfigError(
            f"context {model.context} is more than the {config.max_positions} positions "
            f"{model.source.name} was trained for; use a smaller --context"
        )
    if model.context < N_TOKENS:
        raise ConfigError(
            f"context {model.context} is less than the {N_TOKENS} tokens that graphs are verified "
            "on; use a larger --context"
        )
    if config.rope_scaling.kind == "longrope":
        # Which of the two lists of factors is right depends on how long texts may become.
        model.source = Shortened(model.source, model.context)
    exits = model.config.exit
    if exits is not None and exits.layers[-1] >= config.n_layers:
        raise ConfigError(
            f"--exit {exits.layers[-1]}: expected 1 to {config.n_layers - 1} of the "
            f"{config.n_layers} layers of {model.source.name}"
        )
    if model.hidden_layers and model.hidden_layers[-1] > config.n_layers:
        raise ConfigError(
            f"hidden layer {model.hidden_layers[-1]} does not exist, {model.source.name} has "
            f"layers 0 (embeddings) to {config.n_layers}"
        )


def _check_beside_encoder(model: RecipeModel) -> None:
    """Raises a ConfigError for what there cannot be beside an encoder."""
    if model.source.config.encoder is None:
        return
    if model.kind == DRAFT_MODEL or model.config.draft is not None:
        what = "--draft: a model with an encoder neither drafts nor has one that drafts for it"
    elif model.hidden_layers:
        what = "hidden layers, early exits and heads need tokens that a decoder alone reads"
    elif model.config.calibrate is not None:
        what = "--calibrate reads texts with a decoder alone"
    else:
        return
    raise ConfigError(f"{what}, and {model.source.name} has an encoder: leave it out")


def _check_embedder(model: RecipeModel) -> None:
    """Says how texts become vectors, and writes the matrices behind the pooling."""
    config, options, name = model.source.config, model.config, model.source.name
    if config.is_embedder and (
        options.draft or options.exit or model.head_file or options.calibrate
    ):
        raise ConfigError(
            f"{name} makes vectors of texts and writes none: export it without --draft, --exit, "
            "--head and --calibrate"
        )
    if model.kind == DRAFT_MODEL:
        if config.is_embedder:
            raise ConfigError(
                f"{name} makes vectors of texts, so it cannot draft: name a model that writes"
            )
        return
    if model.embedding is None and config.is_embedder:
        model.embedding = PublishedEmbedding(EmbeddingConfig("mean"))
        model.warnings.append(
            f"{name} does not say how hidden states become a vector (modules.json, or pooling_type "
            "of a GGUF file): their mean is taken"
        )
    if model.embedding is not None and not config.is_embedder:
        model.hidden_layers = tuple(sorted({*model.hidden_layers, config.n_layers}))
    if model.embedding is not None:
        try:
            model.embedding.config.check_dense(config.hidden_size)
        except ConfigError as error:
            raise CheckpointError(f"{name}: {error}") from None
        if model.embedding.dense:
            write_dense(model.bundle_folder / DENSE_NAME, model.embedding.dense)


def trim_head(model: RecipeModel) -> None:
    """The tokens that a draft model's LM head knows."""
    draft = model.config.draft
    assert draft is not None
    size = draft.chosen_head_size(model.source.config.vocab_size)
    if size:
        ids = choose_head_ids(model.source, size, draft.corpus, model.report)
        write_head_ids(model.folder / HEAD_IDS_NAME, ids)
        model.source = TrimmedHead(model.source, ids)


def check_weights(model: RecipeModel) -> None:
    """Every weight is a number, and not all of them are zeros."""
    check = check_weights_read(model.source, model.source.name, model.report)
    model.weights = {"n_matrices": check.n_matrices, "n_vectors": check.n_vectors}
    model.warnings += check.warnings(model.source.name)
    model.warnings += [f"{line}: {INTERRUPTED}" for line in model.source.unwritten()]


def quantise(model: RecipeModel) -> None:
    """The format of every matrix, and what quantising costs each."""
    original = model.source
    if isinstance(model.published, Merged):
        model.lora = model.published.changes()
    stand_ins = {original.stand_in(name) for name in matrices(original.config)} - {None}
    is_converted = any(fmt is not None and model.device.keeps(fmt.name) for fmt in stand_ins)
    is_keeping = model.quantization == "keep"
    if model.config.calibrate is not None and model.kind == TARGET_MODEL and not is_keeping:
        calibrated = calibrate(model)
        model.source, model.tensors = calibrated, measure_errors(calibrated.original, calibrated)
    elif model.quantization != "keep" or is_converted:
        is_draft = model.kind == DRAFT_MODEL
        model.source = Quantized(original, model.quantization, is_draft, model.bundle_folder)
        model.tensors = measure_errors(original, model.source, model.report)
    model.warnings += [
        f"{error.name} of {model.source.name} changes by {error.relative_rms:.0%} of its size in "
        f"{error.format}: export it with a scheme of more bits, such as --quant int8, or keep"
        for error in model.tensors
        if error.relative_rms > MAX_MATRIX_ERROR
    ]
    formats = {model.source.format(name) for name in matrices(model.source.config)}
    if any(fmt.levels and not model.device.keeps(fmt.name) for fmt in formats):
        model.source = Even(model.source)
    for name in matrices(model.source.config):
        kept = model.source.format(name)
        model.formats[name] = kept if model.device.keeps(kept.name) else FORMATS["f32"]


def verify(model: RecipeModel) -> None:
    """Logits of the written graph against the reference, and what else the compiler measures."""
    compiler = find_compiler(model.compiler)
    model.entry = _entry(model)
    can = model.entry.contract.can
    model.verification = verify_logits(
        compiler.open_graph(model), model.source, can.trees, can.row_gap > 0
    )
    check_spread(model.verification, model.source.name)
    check_error(
        model.verification,
        f"the logits of {model.source.name} are {{}} from the reference",
        _hint(model),
    )
    model.verification["weights"] = model.weights
    if can.row_gap:
        can = replace(can, row_gap=max(can.row_gap, model.verification["row_gap"]))
        model.entry = replace(model.entry, contract=replace(model.entry.contract, can=can))
    model.verification |= compiler.measure(model)
    if model.lora:
        changes = list(model.lora.values())
        model.verification["lora"] = {
            "n_matrices": len(changes),
            "mean_change": sum(changes) / len(changes),
            "largest_change": max(changes),
        }
    if model.calibration:
        model.verification["calibration"] = model.calibration


def _hint(model: RecipeModel) -> str:
    """Returns why the logits of a graph may be far from the reference, or what to do."""
    if find_kv_format(model.kv_format).needs_offsets:
        return (
            f"{model.kv_format} may keep too little of its KV cache: export it with --kv-cache int8"
        )
    largest = model.verification.get("largest_kv", 0.0)
    most = float(np.finfo(np.float16).max)
    if model.kv_format != "float16" or largest <= most:
        return f"its weights are broken, or it is no plain {model.source.config.family}"
    most_of = {"int8": 127 * most, "float32": float(np.finfo(np.float32).max)}
    wider = [name for name in model.device.kv_formats if largest <= most_of.get(name, 0.0)]
    instead = f"--kv-cache {' or '.join(wider)}" if wider else "--target portable"
    return (
        f"its keys and values reach {largest:.3g}, more than float16 holds: export it with "
        f"{instead}"
    )


def _entry(model: RecipeModel) -> ModelEntry:
    compiler = find_compiler(model.compiler)
    config = model.source.config
    if has_norm := model.kind == TARGET_MODEL and not config.is_embedder:
        write_final_norm(model.folder / FINAL_NORM_NAME, model.source.vector("norm.weight"))
    return ModelEntry(
        kind=model.kind,
        graph=model.listed(compiler.GRAPH_NAME),
        weights=tuple(
            model.listed(name) for name in compiler.WEIGHTS_NAMES if (model.folder / name).exists()
        ),
        contract=compiler.contract(model),
        config=config,
        context=model.context,
        tensor_formats={name: fmt.name for name, fmt in model.formats.items()},
        head_ids=model.listed(HEAD_IDS_NAME) if config.trimmed_head_size else None,
        final_norm=model.listed(FINAL_NORM_NAME) if has_norm else None,
        encoder=model.listed(ENCODER_NAME) if config.encoder else None,
    )
