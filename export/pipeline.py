"""From a checkpoint to a bundle: the ordered phases."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from edgedec.export.bundle import bundle_folder, check_destination
from edgedec.export.checkpoint import Checkpoint, open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.draft import GRAPH_NAME, MODEL_FOLDER, Draft, ExportReport, read, seal
from edgedec.export.optimum_draft import OptimumDraft, emit_with_optimum, find_recipeless
from edgedec.export.quantize import Quantized, matrices, measure_errors
from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.graph import WEIGHTS_FILE
from edgedec.export.to_onnx.weights_file import write_weights
from edgedec.export.verify import verify_graph
from edgedec.models.errors import ConfigError, UnsupportedModelError
from edgedec.models.manifest import ModelEntry
from edgedec.models.quant import FORMATS, QuantFormat
from edgedec.targets import DeviceTarget, device_target

OnProgress = Callable[[str, int, int], None]
"""Phase, bytes done in it, bytes in all (0: unknown)."""

Phases = tuple[tuple[str, Callable[[Any], None]], ...]
"""Names, and functions that each fill in their part of a draft."""

MAX_RELATIVE_ERROR = 0.3
"""Mean error of logits over their spread. 8-bit activations cost some hundredths; a graph that
computes something else comes to one."""


@dataclass(kw_only=True)
class RecipeDraft(Draft):
    """The draft of a model whose family has a recipe. formats: of every matrix."""

    source: Checkpoint
    context: int = 0
    formats: dict[str, QuantFormat] = field(default_factory=dict)
    graph: onnx.ModelProto = field(default_factory=onnx.ModelProto)


def configure(draft: RecipeDraft) -> None:
    """How long and how deep the graph is."""
    model, wanted = draft.source.config, draft.config
    draft.context = wanted.context or model.max_positions
    if draft.context > model.max_positions:
        raise ConfigError(
            f"context {draft.context} is more than the {model.max_positions} positions "
            f"{draft.source.name} was trained for; ask for fewer"
        )
    if wanted.hidden_layers and wanted.hidden_layers[-1] > model.n_layers:
        raise ConfigError(
            f"hidden layer {wanted.hidden_layers[-1]} does not exist, {draft.source.name} has "
            f"layers 0 (embeddings) to {model.n_layers}"
        )


def quantise(draft: RecipeDraft) -> None:
    """The format of every matrix, and what quantising costs each."""
    if draft.config.quantization != "keep":
        original = draft.source
        draft.source = Quantized(original, draft.config.quantization)
        draft.tensors = measure_errors(original, draft.source, draft.report)
    device = _device(draft)
    for name in matrices(draft.source.config):
        own = draft.source.format(name)
        draft.formats[name] = own if device.keeps(own.name) else FORMATS["f32"]


def emit(draft: RecipeDraft) -> None:
    """The portable graph of the family's recipe."""
    config, layers = draft.source.config, draft.config.hidden_layers
    draft.graph = emit_portable(config, draft.context, layers)
    draft.entry = ModelEntry(
        graph=f"{MODEL_FOLDER}/{GRAPH_NAME}",
        graph_kind=_device(draft).graph_kind,
        weights=(f"{MODEL_FOLDER}/{WEIGHTS_FILE}",),
        config=config,
        context=draft.context,
        hidden_layers=layers,
        tensor_formats={name: fmt.name for name, fmt in draft.formats.items()},
    )


def fuse_graph(draft: RecipeDraft) -> None:
    """The fused graph, where the device runs one."""
    if _device(draft).graph_kind == "fused":
        dump = None if draft.config.dump_passes is None else _dump_into(draft.config.dump_passes)
        draft.graph = fuse(draft.graph, draft.source.config, draft.formats, dump)


def pack(draft: RecipeDraft) -> None:
    """Weights in the device's layout, then the graph that refers to them."""
    on_progress = draft.report
    write_weights(
        draft.graph, draft.source, draft.model_folder, lambda done, n, _: on_progress(done, n)
    )
    onnx.save(draft.graph, draft.model_folder / GRAPH_NAME)


def verify(draft: RecipeDraft) -> None:
    """Logits of the written graph against the reference."""
    kind = _device(draft).graph_kind
    assert kind != "optimum"
    found = verify_graph(draft.model_folder / GRAPH_NAME, kind, draft.source)
    error, spread = found["mean_abs_error"], found["logit_std"]
    if not error <= MAX_RELATIVE_ERROR * spread:  # also true of NaN
        raise UnsupportedModelError(
            f"the logits of {draft.source.name} are {error:.3g} from the reference, expected at "
            f"most {MAX_RELATIVE_ERROR} of their spread {spread:.3g}: its weights are broken, or "
            f"it is no plain {draft.source.config.family}; nothing was written"
        )
    draft.verification = found


PHASES: Phases = (
    ("read", read),
    ("configure", configure),
    ("quantise", quantise),
    ("emit", emit),
    ("fuse", fuse_graph),
    ("pack", pack),
    ("verify", verify),
    ("seal", seal),
)

OPTIMUM_PHASES: Phases = (
    ("read", read),
    ("emit with optimum", emit_with_optimum),
    ("seal", seal),
)
"""For families without a recipe: optimum writes the whole graph and verifies it."""


def export(config: ExportConfig, on_progress: OnProgress | None = None) -> ExportReport:
    """Writes the bundle that ``config`` asks for and returns what was done.

    Raises:
        ConfigError: The options do not fit the model.
        CheckpointError: The source is missing or broken.
        UnsupportedModelError: There is no recipe for the source, and optimum cannot help.
        BundleError: The destination cannot be written; whatever was there is untouched.
    """
    check_destination(config.destination, config.is_overwrite_allowed)
    make_draft, phases = _open(config)
    with bundle_folder(config.destination, config.is_overwrite_allowed) as folder:
        draft = make_draft(folder=folder)
        phase_ms = _run(phases, draft, on_progress or (lambda phase, done, total: None))
    assert draft.manifest is not None
    return ExportReport(config.destination, draft.manifest, draft.tensors, phase_ms)


def _open(config: ExportConfig) -> tuple[Callable[..., Draft], Phases]:
    """Returns a maker of the draft in a folder, and the phases it goes through."""
    try:
        source = open_checkpoint(config.source)
    except UnsupportedModelError:
        recipeless = find_recipeless(config)
        if recipeless is None:
            raise
        return partial(OptimumDraft, config=config, published=recipeless), OPTIMUM_PHASES
    return partial(RecipeDraft, config=config, published=source, source=source), PHASES


def _run(phases: Phases, draft: Draft, on_progress: OnProgress) -> dict[str, float]:
    """Runs the phases in order and returns how long each took. Units: milliseconds."""
    phase_ms = {}
    for name, run in phases:
        draft.report = partial(on_progress, name)
        draft.report(0, 0)
        start = time.perf_counter()
        run(draft)
        phase_ms[name] = round((time.perf_counter() - start) * 1e3, 1)
    return phase_ms


def _device(draft: Draft) -> DeviceTarget:
    return device_target(draft.config.device_target)


def _dump_into(folder: Path) -> Callable[[str, onnx.ModelProto], None]:
    folder.mkdir(parents=True, exist_ok=True)
    return lambda stem, graph: onnx.save(graph, folder / f"{stem}.onnx")
