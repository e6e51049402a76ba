"""Kernels for NVIDIA's GPUs, of functions in TVM's tensor IR, launched as a program states."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from edgedec.export.phases.recipe_model import RecipeModel
from edgedec.export.weights_file import Chunks, write_tensors
from edgedec.models.families import matrices
from edgedec.models.graph import (
    INPUT_IDS,
    LOGIT_ROWS,
    LOGITS,
    PARENTS,
    PAST_LENGTH,
    POSITION_IDS,
    ROUNDING_GAP,
    ROW_STATS,
    WEIGHTS_BESIDE,
    Capabilities,
    GraphContract,
    KVLayout,
    hidden_port,
    stats_port,
)
from edgedec.models.quant import FORMATS
from edgedec.targets.cuda.export_build import build_fatbin, device_program, find_nvcc, local_arch
from edgedec.targets.cuda.export_cuda_source import cuda_source
from edgedec.targets.cuda.export_emit import Weights, check_supported, emit_program
from edgedec.targets.cuda.export_runner import TwinRunner
from edgedec.targets.cuda.export_stored import chunks_of

GRAPH_NAME = "program.json"
KERNELS_NAME = "kernels.fatbin"
WEIGHTS_NAMES = (WEIGHTS_BESIDE, KERNELS_NAME)

_HALF_BYTES = 2


def emit(model: RecipeModel) -> None:
    """The launches of every kind of pass.

    Matrices of floats are kept as float16, and so are those whose rows are no whole groups.
    """
    config, formats = model.source.config, model.formats
    check_supported(config)
    find_nvcc()
    arch = model.config.arch or local_arch()
    for name, (_, k) in matrices(config).items():
        if formats[name].is_float or k % formats[name].group:
            formats[name] = FORMATS["f16"]
    weights = Weights(config, model.context, formats)
    emitted = emit_program(config, model.context, weights, model.hidden_layers)
    model.graph = arch, weights, emitted


def compile_kernels(model: RecipeModel) -> None:
    """The code of the kernels, and the program that launches them."""
    arch, weights, emitted = model.graph
    source = cuda_source(emitted.kernels, arch)
    model.dump("00_kernels", lambda path: _write_text(path.with_suffix(".cu"), source.text))
    build_fatbin(source, arch, model.folder / KERNELS_NAME)
    program = device_program(emitted, weights, source, arch)
    (model.folder / GRAPH_NAME).write_text(program.to_json(), encoding="utf-8", newline="\n")
    model.graph = program, weights, emitted


def pack(model: RecipeModel) -> None:
    """Weights as the kernels read them."""
    _, weights, _ = model.graph
    chunks: dict[str, Chunks] = {}
    for name, matrix in weights.matrices.items():
        chunks |= chunks_of(name, matrix, weights.parts.get(name, (name,)), model.source)
    for name, parts in weights.joined_biases.items():
        chunks[name] = partial(map, model.source.vector, parts)
    report, path = model.report, model.folder / WEIGHTS_BESIDE
    write_tensors(weights.tensors, model.source, path, lambda done, n, _: report(done, n), chunks)


PHASES = (("emit", emit), ("compile", compile_kernels), ("pack", pack))


def contract(model: RecipeModel) -> GraphContract:
    """Returns what the program of ``model`` takes, gives and can do."""
    config = model.source.config
    n_numbers = config.n_kv_numbers
    return GraphContract(
        compiler="cuda",
        backend="cuda",
        triple=model.device.triple,
        providers=(),
        inputs=(INPUT_IDS, POSITION_IDS, PARENTS, PAST_LENGTH, LOGIT_ROWS),
        outputs=(
            LOGITS, *map(stats_port, ROW_STATS), *map(hidden_port, model.hidden_layers)
        ),
        kv=KVLayout("states", model.kv_format, row_nbytes=_HALF_BYTES * n_numbers),
        can=Capabilities(
            trees=True, row_stats=True, hidden=model.hidden_layers, row_gap=ROUNDING_GAP
        ),
    )  # fmt: skip


def open_graph(model: RecipeModel) -> TwinRunner:
    """Returns a way to run the program, its kernels on this machine's CPU."""
    program, _, emitted = model.graph
    weights = model.folder / WEIGHTS_BESIDE
    return TwinRunner(program, emitted.kernels, weights, model.source.config.n_logits)


def measure(model: RecipeModel) -> dict[str, Any]:
    """Returns nothing: there is no more to measure without a GPU."""
    return {}


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
