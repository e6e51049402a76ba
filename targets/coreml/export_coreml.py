"""Core ML's own operators: one package of functions for prefill, one token, and trees."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgedec.export.phases.recipe_model import RecipeModel
from edgedec.export.verifying.verify import N_TOKENS, verification_tokens
from edgedec.models.graph import (
    ATTENTION_BIAS,
    INPUT_IDS,
    LOGIT_ROWS,
    LOGITS,
    PAST_LENGTH,
    POSITION_IDS,
    ROUNDING_GAP,
    Capabilities,
    GraphContract,
    KVLayout,
    hidden_port,
)
from edgedec.models.static_passes import PREFILL
from edgedec.targets.coreml.export_emit import emit_mil, state_shape
from edgedec.targets.coreml.export_package import ITEMS, SPECIFICATION, WEIGHTS, write_package
from edgedec.targets.coreml.export_runner import PackageRunner
from edgedec.targets.coreml.export_weights import Weights

GRAPH_NAME = SPECIFICATION
WEIGHTS_NAMES = (WEIGHTS, ITEMS)

_FLOAT16_BYTES = 2


def emit(model: RecipeModel) -> None:
    """The functions of the family's recipe, and the weights that they share."""
    config = model.source.config
    weights = Weights(model.source, model.formats, model.context)
    model.graph = emit_mil(config, model.context, weights, model.hidden_layers)


def pack(model: RecipeModel) -> None:
    """The package."""
    write_package(model.graph, model.folder)
    model.graph = None  # the weights are in it


PHASES = (("emit", emit), ("pack", pack))


def contract(model: RecipeModel) -> GraphContract:
    """Returns what the functions of ``model`` take, give and can do."""
    config, device = model.source.config, model.device
    n_numbers = config.n_kv_numbers
    return GraphContract(
        compiler="coreml",
        backend="coreml",
        triple=device.triple,
        providers=device.providers,
        inputs=(INPUT_IDS, POSITION_IDS, PAST_LENGTH, ATTENTION_BIAS, LOGIT_ROWS),
        outputs=(LOGITS, *map(hidden_port, model.hidden_layers)),
        kv=KVLayout("states", model.kv_format, row_nbytes=_FLOAT16_BYTES * n_numbers),
        can=Capabilities(trees=True, hidden=model.hidden_layers, row_gap=ROUNDING_GAP),
    )


def open_graph(model: RecipeModel) -> PackageRunner:
    """Returns a way to evaluate the written package, operator by operator."""
    n_rows = state_shape(model.source.config, model.context)[2]
    runner = model.graph = PackageRunner(model.folder, n_rows)
    return runner


def measure(model: RecipeModel) -> dict[str, Any]:
    """Returns how far logits of the function for prefill are from that for few rows."""
    runner: PackageRunner = model.graph
    tokens, parents = verification_tokens(model.source.config), range(-1, N_TOKENS - 1)
    few, many = runner.compute_logits(tokens, parents), runner.run_static(PREFILL, tokens, parents)
    return {"prefill_max_abs_error": float(np.abs(few[-1] - many[0]).max())}
