"""What keys and values take in a KV cache of panels."""

from __future__ import annotations

from collections.abc import Collection

from edgedec.models.config import ModelConfig
from edgedec.models.kv_formats import KV_PANEL, kv_panels_of


def kv_row_nbytes(
    config: ModelConfig, kv_format: str, layers: Collection[int] | None = None
) -> int:
    """Returns the bytes that one token takes in ``layers``, in all that keep some when None."""
    panels = kv_panels_of(kv_format)
    kept = config.kv_layers if layers is None else layers
    blocks = (panels.block_nbytes(config.head_size_of(i)) for i in kept)
    return 2 * config.n_kv_heads * sum(blocks) // KV_PANEL


def kv_block_nbytes(config: ModelConfig, kv_format: str) -> int:
    """Returns the bytes of 16 keys of one head, in the first layer that keeps some."""
    return kv_panels_of(kv_format).block_nbytes(config.head_size_of(config.kv_layers[0]))
