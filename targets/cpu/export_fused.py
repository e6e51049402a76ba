"""edgedec's own operators on ONNX Runtime: packed weights, KV cache written in place."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from edgedec.export.kv_panels import kv_panels
from edgedec.export.phases.recipe_model import ENCODER_NAME, RecipeModel
from edgedec.export.quantising.key_offsets import measure_key_offsets
from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.emit_encoder import emit_encoder
from edgedec.export.to_onnx.fuse import fuse, fuse_encoder
from edgedec.export.to_onnx.graph import port_names
from edgedec.export.to_onnx.key_offsets import set_key_offsets
from edgedec.export.to_onnx.messages import ModelProto, save_model
from edgedec.export.to_onnx.runners import FusedRunner
from edgedec.export.verifying.kv_error import (
    check_kv_error,
    kv_error_tokens,
    measure_kv_error,
    with_float16,
)
from edgedec.export.verifying.verify import N_TOKENS, verification_source
from edgedec.export.weights_file import WEIGHTS_FILE
from edgedec.models.graph import MAX_SEQUENCES, Capabilities, GraphContract
from edgedec.models.kv_formats import find_kv_format
from edgedec.targets.portable.export_portable import pack

HAS_ENCODERS = True
RECURRENCES = ("short_conv", "mamba2", "delta")
BLOCKS = True
GRAPH_NAME = "model.onnx"
WEIGHTS_NAMES = (WEIGHTS_FILE,)


def emit(model: RecipeModel) -> None:
    """The graph of the family's recipe; passes that stop early need its last hidden states."""
    config = model.source.config
    model.graph = emit_portable(config, model.returned_layers)
    if config.encoder is not None:
        model.encoder = emit_encoder(config)


def fuse_graph(model: RecipeModel) -> None:
    """The graph after every pass, packed matrices and edgedec's operators in it."""

    def dump(stem: str, graph: ModelProto) -> None:
        model.dump(stem, lambda path: save_model(graph, Path(f"{path}.onnx")))

    config, formats = model.source.config, model.formats
    model.graph = fuse(model.graph, config, formats, dump, kv_format=model.kv_format)
    if model.encoder is not None:
        model.encoder = fuse_encoder(model.encoder, formats)


def set_offsets(model: RecipeModel) -> None:
    """Offsets of keys, for a KV cache that keeps less than attention computes."""
    config = model.source.config
    is_plain = config.encoder is None and not config.is_bidirectional
    if not is_plain or not find_kv_format(model.kv_format).is_rounded:
        return
    graph = model.folder / GRAPH_NAME
    with with_float16(graph, config) as reference:
        tokens = kv_error_tokens(model.source, model.context)
        offsets = measure_key_offsets(reference, config, tokens)
    if offsets:
        set_key_offsets(model.graph, config, offsets)
        save_model(model.graph, graph)


PHASES = (("emit", emit), ("fuse", fuse_graph), ("pack", pack), ("set offsets", set_offsets))


def contract(model: RecipeModel) -> GraphContract:
    """Returns what the graph of ``model`` takes, gives and can do."""
    device, config = model.device, model.source.config
    return GraphContract(
        compiler="fused",
        backend="fused",
        triple=model.config.triple or device.triple,
        providers=device.providers,
        inputs=port_names(model.graph.graph.input),
        outputs=port_names(model.graph.graph.output),
        kv=kv_panels(config, model.kv_format),
        can=Capabilities(
            trees=not config.is_bidirectional,
            blocks=config.is_bidirectional,
            gates=config.can_skip_layers,
            row_stats=not config.is_embedder,
            entry=config.can_skip_layers,
            hidden=model.returned_layers,
            n_sequences=1 if config.recurrent_layers else MAX_SEQUENCES,
            sources=config.encoder is not None,
        ),
    )


def open_graph(model: RecipeModel) -> FusedRunner:
    """Returns a way to run the written graph."""
    config = model.source.config
    runner = FusedRunner(model.folder / GRAPH_NAME, config, 3 * N_TOKENS)
    if model.encoder is not None:
        runner.read_source(model.folder / ENCODER_NAME, verification_source(config))
    return runner


def measure(model: RecipeModel) -> dict[str, Any]:
    """Returns what a KV cache costs that keeps less than attention computes, as ``kv_cache``.

    Raises:
        UnsupportedModelError: It costs so much that the model is of no use.
    """
    if not find_kv_format(model.kv_format).is_rounded:
        return {}
    encoder = None if model.encoder is None else model.folder / ENCODER_NAME
    n_most = model.context if encoder is None else model.context // 2  # read, then written
    tokens = kv_error_tokens(model.source, n_most)
    error = measure_kv_error(model.folder / GRAPH_NAME, model.source.config, tokens, encoder)
    if not math.isfinite(error["logit_std"]):  # float16 overflows, so it says nothing of int8
        return {}
    check_kv_error(error, model.kv_format, model.source.name)
    return {"kv_cache": {"format": model.kv_format, **error}}
