"""How the attention operator keeps keys and values: the layout, and each layer's place in it."""

from __future__ import annotations

from typing import NamedTuple

from edgedec.models.config import ModelConfig
from edgedec.models.graph import (
    K_CACHE,
    K_RING,
    RING_SEQUENCES,
    SEQUENCES,
    V_CACHE,
    V_RING,
    KVLayout,
)
from edgedec.models.kv_formats import KV_PANEL, kv_block_nbytes, kv_row_nbytes

KV_FORMAT = "kv_format"
"""Attribute of nodes with a KV cache: the number of its format, see `KVPanels`."""

RING_ROOM = 512
"""Rows that a ring has besides those of the window: for a pass of prefill, several times over, so
that the rest of it may be taken back without computing the text anew."""

_RING_STEP = 2 * KV_PANEL


def kv_panels(config: ModelConfig, kv_format: str) -> KVLayout:
    """Returns the layout of the KV cache that the attention operator reads and writes."""
    rings = config.windowed_layers
    return KVLayout(
        "panels",
        kv_format,
        kv_row_nbytes(config, kv_format),
        kv_block_nbytes(config, kv_format),
        rings,
        -(-(config.look_back + RING_ROOM) // _RING_STEP) * _RING_STEP if rings else 0,
        config.recurrent_layers,
        recurrent_rows(config),
    )


def recurrent_rows(config: ModelConfig) -> int:
    """Returns how many rows of a recurrent layer are kept; 0 without such layers."""
    return config.recurrence.look_back + RING_ROOM if config.recurrent_layers else 0


class KVPlace(NamedTuple):
    """Where a layer keeps keys and values.

    layer: its number in ``caches``. sequences: the input that says whose rows are where.
    """

    layer: int
    sequences: str
    caches: tuple[str, str]


def kv_place(config: ModelConfig, layer: int) -> KVPlace:
    """Returns where a layer keeps keys and values."""
    rings = config.windowed_layers
    if layer in rings:
        return KVPlace(rings.index(layer), RING_SEQUENCES, (K_RING, V_RING))
    whole = [i for i in config.kv_layers if i not in rings]
    return KVPlace(whole.index(layer), SEQUENCES, (K_CACHE, V_CACHE))
