"""edgedec's own operators, called by a program that TVM compiled ahead of time."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from edgedec.export.kv_panels import kv_panels
from edgedec.export.phases.recipe_model import RecipeModel
from edgedec.export.verifying.kv_error import check_kv_error, compare_kv_formats, kv_error_tokens
from edgedec.export.verifying.verify import N_TOKENS
from edgedec.export.weights_file import WEIGHTS_FILE, write_tensors
from edgedec.kernels.tvm_program import RUNTIME_NAMES
from edgedec.models.errors import ConfigError
from edgedec.models.graph import MAX_SEQUENCES, Capabilities, GraphContract
from edgedec.models.kv_formats import find_kv_format
from edgedec.system.machine import machine_triple
from edgedec.targets.tvm.export_build import build_library, copy_runtime, dump_script
from edgedec.targets.tvm.export_emit import emit_relax
from edgedec.targets.tvm.export_runner import ProgramRunner

GRAPH_NAME = "model.so"
WEIGHTS_NAMES = (WEIGHTS_FILE, *RUNTIME_NAMES)

_FLOAT16_NAME = "float16_kv_cache.so"


def emit(model: RecipeModel) -> None:
    """The graph of the family's recipe, in Relax.

    Raises:
        ConfigError: The KV cache needs offsets of keys, which are measured on graphs of ONNX.
    """
    if find_kv_format(model.kv_format).needs_offsets:
        raise ConfigError(
            f"KV cache format is {model.kv_format}, which the compiler tvm does not make: choose "
            "--kv-cache int8, or leave out --compiler"
        )
    model.graph = emit_relax(
        model.source.config, model.formats, model.returned_layers, model.kv_format
    )
    model.dump("00_relax", lambda path: dump_script(model.graph, path))


def pack(model: RecipeModel) -> None:
    """Weights as the operators read them."""
    report = model.report
    path = model.folder / WEIGHTS_FILE
    write_tensors(model.graph.weights, model.source, path, lambda done, n, _: report(done, n))


def compile_graph(model: RecipeModel) -> None:
    """The program, and beside it what runs it."""
    build_library(model.graph, machine_triple(), model.folder / GRAPH_NAME)
    copy_runtime(model.folder)


PHASES = (("emit", emit), ("pack", pack), ("compile", compile_graph))


def contract(model: RecipeModel) -> GraphContract:
    """Returns what the graph of ``model`` takes, gives and can do."""
    return GraphContract(
        compiler="tvm",
        backend="tvm",
        triple=machine_triple(),
        providers=(),
        inputs=model.graph.inputs,
        outputs=model.graph.outputs,
        kv=kv_panels(model.source.config, model.kv_format),
        can=Capabilities(
            trees=True,
            gates=True,
            row_stats=True,
            entry=True,
            hidden=model.returned_layers,
            n_sequences=MAX_SEQUENCES,
        ),
    )


def open_graph(model: RecipeModel) -> ProgramRunner:
    """Returns a way to run the written graph."""
    return ProgramRunner(
        model.folder / GRAPH_NAME, model.source.config, contract(model), 2 * N_TOKENS
    )


def measure(model: RecipeModel) -> dict[str, Any]:
    """Returns what a KV cache costs that keeps less than attention computes, as ``kv_cache``.

    Raises:
        UnsupportedModelError: It costs so much that the model is of no use.
    """
    if not find_kv_format(model.kv_format).is_rounded:
        return {}
    tokens = kv_error_tokens(model.source, model.context)
    config, graph_contract = model.source.config, contract(model)
    graph = emit_relax(config, model.formats, model.returned_layers, "float16")
    path = model.folder / _FLOAT16_NAME
    try:
        build_library(graph, machine_triple(), path)
        error = compare_kv_formats(
            ProgramRunner(model.folder / GRAPH_NAME, config, graph_contract, len(tokens)),
            ProgramRunner(
                path, config, replace(graph_contract, kv=kv_panels(config, "float16")), len(tokens)
            ),
            tokens,
        )
    finally:
        path.unlink(missing_ok=True)
    if not math.isfinite(error["logit_std"]):  # float16 overflows, so it says nothing of int8
        return {}
    check_kv_error(error, model.kv_format, model.source.name)
    return {"kv_cache": {"format": model.kv_format, **error}}
