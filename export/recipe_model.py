"""The phases of a model whose family has a recipe: from its checkpoint to graph and weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import onnx

from edgedec.export.checkpoint import Checkpoint
from edgedec.export.head_tokens import choose_head_ids
from edgedec.export.kv_error import kv_error_tokens, measure_kv_error
from edgedec.export.quantize import Quantized, matrices, measure_errors
from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.graph import WEIGHTS_FILE
from edgedec.export.to_onnx.weights_file import write_weights
from edgedec.export.trimmed_head import TrimmedHead
from edgedec.export.unfinished import DRAFT, GRAPH_NAME, UnfinishedModel
from edgedec.export.verify import verify_graph
from edgedec.models.errors import ConfigError, UnsupportedModelError
from edgedec.models.head_ids import write_head_ids
from edgedec.models.manifest import ModelEntry
from edgedec.models.quant import FORMATS, QuantFormat
from edgedec.targets import DeviceTarget, device_target

HEAD_IDS_NAME = "head_ids.bin"

MAX_RELATIVE_ERROR = 0.3
"""Mean error of logits over their spread. 8-bit activations cost some hundredths; a graph that
computes something else comes to one."""


@dataclass(kw_only=True)
class RecipeModel(UnfinishedModel):
    """A model whose family has a recipe, on its way into a bundle. formats: of every matrix."""

    source: Checkpoint
    quantization: str
    hidden_layers: tuple[int, ...] = ()
    context: int = 0
    formats: dict[str, QuantFormat] = field(default_factory=dict)
    graph: onnx.ModelProto = field(default_factory=onnx.ModelProto)


def configure(model: RecipeModel) -> None:
    """How long and how deep the graph is."""
    config, wanted = model.source.config, model.config.context
    model.context = wanted or config.max_positions
    if model.role == DRAFT:
        model.context = min(model.context, config.max_positions)
    if model.context > config.max_positions:
        raise ConfigError(
            f"context {model.context} is more than the {config.max_positions} positions "
            f"{model.source.name} was trained for; ask for fewer"
        )
    if model.hidden_layers and model.hidden_layers[-1] > config.n_layers:
        raise ConfigError(
            f"hidden layer {model.hidden_layers[-1]} does not exist, {model.source.name} has "
            f"layers 0 (embeddings) to {config.n_layers}"
        )


def trim_head(model: RecipeModel) -> None:
    """The tokens that a draft model's LM head knows."""
    wanted = model.config.draft
    assert wanted is not None
    size = wanted.chosen_head_size(model.source.config.vocab_size)
    if size:
        ids = choose_head_ids(model.source, size, wanted.corpus, model.report)
        write_head_ids(model.folder / HEAD_IDS_NAME, ids)
        model.source = TrimmedHead(model.source, ids)


def quantise(model: RecipeModel) -> None:
    """The format of every matrix, and what quantising costs each."""
    if model.quantization != "keep":
        original = model.source
        model.source = Quantized(original, model.quantization, is_draft=model.role == DRAFT)
        model.tensors = measure_errors(original, model.source, model.report)
    device = _device(model)
    for name in matrices(model.source.config):
        own = model.source.format(name)
        model.formats[name] = own if device.keeps(own.name) else FORMATS["f32"]


def emit(model: RecipeModel) -> None:
    """The portable graph of the family's recipe."""
    config, layers = model.source.config, model.hidden_layers
    model.graph = emit_portable(config, model.context, layers)
    model.entry = ModelEntry(
        graph=model.listed(GRAPH_NAME),
        graph_kind=_device(model).graph_kind,
        weights=(model.listed(WEIGHTS_FILE),),
        config=config,
        context=model.context,
        hidden_layers=layers,
        tensor_formats={name: fmt.name for name, fmt in model.formats.items()},
        head_ids=model.listed(HEAD_IDS_NAME) if config.trimmed_head_size else None,
        kv_format=model.config.kv_format if _device(model).graph_kind == "fused" else None,
    )


def fuse_graph(model: RecipeModel) -> None:
    """The fused graph, where the device runs one."""
    if _device(model).graph_kind == "fused":
        model.graph = fuse(
            model.graph,
            model.source.config,
            model.formats,
            _dump(model),
            kv_format=model.config.kv_format,
        )


def pack(model: RecipeModel) -> None:
    """Weights in the device's layout, then the graph that refers to them."""
    on_progress = model.report
    write_weights(model.graph, model.source, model.folder, lambda done, n, _: on_progress(done, n))
    onnx.save(model.graph, model.folder / GRAPH_NAME)


def verify(model: RecipeModel) -> None:
    """Logits of the written graph against the reference, and what an int8 KV cache costs it."""
    kind = _device(model).graph_kind
    assert kind != "optimum"
    found = verify_graph(model.folder / GRAPH_NAME, kind, model.source)
    error, spread = found["mean_abs_error"], found["logit_std"]
    if not error <= MAX_RELATIVE_ERROR * spread:  # also true of NaN
        raise UnsupportedModelError(
            f"the logits of {model.source.name} are {error:.3g} from the reference, expected at "
            f"most {MAX_RELATIVE_ERROR} of their spread {spread:.3g}: its weights are broken, or "
            f"it is no plain {model.source.config.family}; nothing was written"
        )
    if model.config.kv_format == "int8":
        found["int8_kv_cache"] = _verify_kv_cache(model)
    model.verification = found


def _verify_kv_cache(model: RecipeModel) -> dict[str, Any]:
    tokens = kv_error_tokens(model.source, model.context)
    found = measure_kv_error(model.folder / GRAPH_NAME, model.source.config, tokens)
    error, spread = found["mean_abs_error"], found["logit_std"]
    if not error <= MAX_RELATIVE_ERROR * spread:
        raise UnsupportedModelError(
            f"with an int8 KV cache the logits of {model.source.name} are {error:.3g} from those "
            f"with float16, expected at most {MAX_RELATIVE_ERROR} of their spread {spread:.3g}: "
            "export it with --kv-cache float16; nothing was written"
        )
    return found


def _device(model: UnfinishedModel) -> DeviceTarget:
    return device_target(model.config.device_target)


def _dump(model: UnfinishedModel) -> Callable[[str, onnx.ModelProto], None] | None:
    """Returns a writer of the graph after each pass, if that is wanted."""
    folder = model.config.dump_passes
    if folder is None:
        return None
    if model.role == DRAFT:
        folder = folder / DRAFT
    folder.mkdir(parents=True, exist_ok=True)
    return lambda stem, graph: onnx.save(graph, folder / f"{stem}.onnx")
