"""The ports of a graph in Relax: its parameters, by their names in `edgedec.models.graph`."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from edgedec.kernels import kv_block_nbytes
from edgedec.models.config import ModelConfig
from edgedec.models.graph import (
    ENTRY,
    INPUT_IDS,
    K_CACHE,
    K_RING,
    KV_PANEL,
    LAYER_GATES,
    LOGIT_ROWS,
    PARENTS,
    POSITION_IDS,
    RING_SEQUENCES,
    SEQUENCE_FIELDS,
    SEQUENCES,
    V_CACHE,
    V_RING,
    KVFormat,
)


def make_inputs(config: ModelConfig, kv_format: KVFormat) -> dict[str, Any]:
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
    return {
        name: relax.Var(name, relax.TensorType(shape, dtype))
        for name, (dtype, shape) in shapes.items()
    }


def _kv_inputs(
    config: ModelConfig, kv_format: KVFormat, names: tuple[str, str], n_layers: int, size: Any
) -> dict[str, tuple[str, tuple[Any, ...]]]:
    """Returns type and shape of a KV cache's keys and values; see `KVLayout`."""
    heads, d = (n_layers, config.n_kv_heads), config.head_size
    k, v = names
    n_panels = size(f"{k}_panels")
    if kv_format == "int8":
        blocks = (*heads, n_panels, kv_block_nbytes(d))
        return {k: ("uint8", blocks), v: ("uint8", blocks)}
    return {
        k: ("float16", (*heads, n_panels, d, KV_PANEL)),
        v: ("float16", (*heads, size(f"{v}_rows"), d)),
    }
