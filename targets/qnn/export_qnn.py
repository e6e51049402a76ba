"""Qualcomm's NPUs: graphs of 16-bit codes, calibrated on a text, compiled for one device."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from edgedec.export.phases.recipe_model import RecipeModel
from edgedec.export.quantising.calibration.short_text import SHORT_TEXT
from edgedec.export.quantising.calibration.texts import read_texts
from edgedec.export.to_onnx.graph import port_names
from edgedec.export.to_onnx.messages import load_model, save_model
from edgedec.export.verifying.verify import check_error, compare_logits, verification_tokens
from edgedec.kernels.qnn_provider import new_session
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.graph import ROUNDING_GAP, Capabilities, GraphContract, KVLayout
from edgedec.models.static_passes import BUCKETS, CONTEXT_BINARIES
from edgedec.system.machine import machine_triple
from edgedec.targets.qnn.export_binaries import compile_graphs
from edgedec.targets.qnn.export_emit import emit_qdq
from edgedec.targets.qnn.export_ranges import CHUNK, CONTEXT, measure_ranges
from edgedec.targets.qnn.export_runner import QdqRunner, open_on_cpu
from edgedec.targets.qnn.export_stored import WEIGHTS_NAME, StoredWeights
from edgedec.targets.qnn.socs import find_soc

GRAPH_NAME = f"{BUCKETS[0].name}.onnx"
WEIGHTS_NAMES = (*(f"{bucket.name}.onnx" for bucket in BUCKETS[1:]), *CONTEXT_BINARIES)

_SCRATCH = "qdq"
_CODE_BYTES = 2
_VERIFIED = tuple(bucket for bucket in BUCKETS if bucket.n_logits == bucket.n_rows)
"""Graphs with logits of every row, which verification compares."""


def measure_activations(model: RecipeModel) -> None:
    """The ranges of activations on a text, from the graph of floats."""
    _check(model)
    scratch = model.folder / _SCRATCH
    scratch.mkdir()
    config = model.source.config
    n_positions = max(model.context, CONTEXT)
    path, has_blocks = scratch / WEIGHTS_NAME, find_soc(model.config.soc or "").has_blocks
    weights = StoredWeights(model.source, model.formats, n_positions, path, has_blocks)
    graph = emit_qdq(config, CONTEXT, weights, CHUNK)
    weights.flush()
    ranges = measure_ranges(graph, scratch / "floats.onnx", _texts(model))
    model.graph = weights, ranges


def emit(model: RecipeModel) -> None:
    """The graph of the family's recipe for each size of pass."""
    weights, ranges = model.graph
    config, scratch = model.source.config, model.folder / _SCRATCH
    for static in BUCKETS:
        graph = emit_qdq(config, model.context, weights, static, ranges)
        save_model(graph, scratch / f"{static.name}.onnx")
    weights.close()


def compile_for_soc(model: RecipeModel) -> None:
    """The binaries."""
    assert model.config.soc is not None
    graphs = {static: model.folder / _SCRATCH / f"{static.name}.onnx" for static in BUCKETS}
    is_shared = model.config.triple != machine_triple()
    compile_graphs(graphs, find_soc(model.config.soc), model.folder, is_shared)


PHASES = (("calibrate", measure_activations), ("emit", emit), ("compile", compile_for_soc))


def contract(model: RecipeModel) -> GraphContract:
    """Returns what the graphs of ``model`` take, give and can do."""
    config = model.source.config
    assert model.config.soc is not None
    graph = load_model(model.folder / GRAPH_NAME).graph
    n_numbers = config.n_kv_numbers
    return GraphContract(
        compiler="qnn",
        backend="qnn",
        triple=model.config.triple or model.device.triple,
        providers=(model.config.soc,),
        inputs=port_names(graph.input),
        outputs=port_names(graph.output),
        kv=KVLayout("rows", model.kv_format, row_nbytes=_CODE_BYTES * n_numbers),
        can=Capabilities(trees=True, row_gap=ROUNDING_GAP),
    )


def open_graph(model: RecipeModel) -> QdqRunner:
    """Returns a way to run what was compiled, on the CPU."""
    scratch = model.folder / _SCRATCH
    return QdqRunner({s: open_on_cpu(scratch / f"{s.name}.onnx") for s in _VERIFIED})


def measure(model: RecipeModel) -> dict[str, Any]:
    """Returns how far logits on Qualcomm's library are from those on the CPU.

    They are those of the largest graph with logits of all its rows.

    Raises:
        UnsupportedModelError: They have nothing in common.
    """
    assert model.config.soc is not None
    soc, scratch, static = find_soc(model.config.soc), model.folder / _SCRATCH, _VERIFIED[-1]
    graph = scratch / f"{static.name}.onnx"
    tokens = np.resize(verification_tokens(model.source.config), static.n_rows).tolist()
    logits_, expected = (
        QdqRunner({static: session}).compute_logits(tokens, range(-1, len(tokens) - 1))
        for session in (new_session(graph, soc.number, soc.arch), open_on_cpu(graph))
    )
    compared = compare_logits(logits_, expected)
    place = f"logits of {model.source.name} on Qualcomm's library are {{}} from the CPU's"
    check_error(compared, place, "one of its operators computes something else")
    shutil.rmtree(scratch)
    return {f"npu_{key}": compared[key] for key in ("kl_nats", "mean_abs_error", "max_abs_error")}


def _check(model: RecipeModel) -> None:
    """Raises an UnsupportedModelError where these graphs lack what the model needs."""
    config, lacking = model.source.config, ""
    if config.n_experts:
        lacking = "experts"
    elif any(0 < config.layer(i).window < model.context for i in range(config.n_layers)):
        lacking = "windows shorter than the context"
    elif model.hidden_layers:
        lacking = "hidden layers as outputs"
    if lacking:
        raise UnsupportedModelError(
            f"--target qnn has no {lacking} yet, which {model.source.name} was to be exported "
            "with: export with --target cpu"
        )


def _texts(model: RecipeModel) -> list[list[int]]:
    """Returns token ids to measure activations on, with and without a token that opens them."""
    if model.config.calibrate is not None:
        texts = read_texts(model.config.calibrate, model.published, CONTEXT).texts[:8]
        return [text.tolist() for text in texts]
    tokenizer = Tokenizer.from_str(model.published.tokenizer_json())
    ids = tokenizer.encode(SHORT_TEXT, add_special_tokens=False).ids
    ids = np.resize(ids or [0], -(-len(ids) // CHUNK.n_rows) * CHUNK.n_rows).tolist()
    special = model.published.special
    openings = sorted({*special.opening_ids, *special.eos_ids})
    return [ids[:CONTEXT], *([opening, *ids][:CONTEXT] for opening in openings)]
