"""The ports of a graph in Relax: its parameters, by their names in `edgedec.models.graph`."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from edgedec.models.config import ModelConfig
from edgedec.models.graph import (
    ENTRY,
    INPUT_IDS,
    K_CACHE,
    K_RING,
    LAYER_GATES,
    LOGIT_ROWS,
    PARENTS,
    POSITION_IDS,
    RING_SEQUENCES,
    SEQUENCE_FIELDS,
    SEQUENCES,
    V_CACHE,
    V_RING,
)
from edgedec.models.kv_formats import kv_panels_of
from edgedec.models.position_tables import position_tables


def make_inputs(config: ModelConfig, kv_format: str) -> dict[str, Any]:
    """Returns the parameters of the program, by port."""

    def size(name: str) -> Any:
        return tvm.tirx.Var(name, "int64")

    shapes: dict[str, tuple[str, tuple[Any, ...]]] = {
        INPUT_IDS: ("int64", (1, size("I"))),
        ENTRY: ("float32", (1, size("E"), config.hidden_size)),
        POSITION_IDS: ("int64", (1, size("T"))),
        PARENTS: ("int64", (1, size("P"))),
        SEQUENCES: ("int64", (size("S"), SEQUENCE_FIELDS)),
        LOGIT_ROWS: ("int64", (size("R"),)),
        LAYER_GATES: ("int64", (2 * config.n_layers,)),
    }
    n_rings = len(config.windowed_layers)
    shapes |= _kv_inputs(config, kv_format, (K_CACHE, V_CACHE), config.n_layers - n_rings, size)
    if n_rings:
        shapes[RING_SEQUENCES] = "int64", (size("ring_S"), SEQUENCE_FIELDS)
        shapes |= _kv_inputs(config, kv_format, (K_RING, V_RING), n_rings, size)
    for name, width in position_tables(config).items():
        shapes[name] = "float32", (size(f"{name.replace('.', '_')}_rows"), width)
    return {
        name: relax.Var(name, relax.TensorType(shape, dtype))
        for name, (dtype, shape) in shapes.items()
    }


def _kv_inputs(
    config: ModelConfig, kv_format: str, names: tuple[str, str], n_layers: int, size: Any
) -> dict[str, tuple[str, tuple[Any, ...]]]:
    """Returns type and shape of a KV cache's keys and values; see `KVLayout`."""
    heads, d = (n_layers, config.n_kv_heads), config.head_size
    k, v = names
    n_panels = size(f"{k}_panels")
    panels = kv_panels_of(kv_format)
    keys, values = panels.shapes(n_panels, size(f"{v}_rows"), d)
    return {k: (panels.element, (*heads, *keys)), v: (panels.element, (*heads, *values))}
