"""Keys and values of the fused backend, in the layout its attention kernel reads."""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.kernels import kv_block_nbytes
from edgedec.models.config import ModelConfig
from edgedec.models.errors import SessionError
from edgedec.models.graph import KV_PANEL, KVFormat
from edgedec.runtime.sessions.state import KVRows

_SCALES_NBYTES = 2 * KV_PANEL

Array = npt.NDArray[Any]


class PanelKVCache:
    """Keys and values of every layer, float16 or int8. The attention operator writes rows in place.

    Shapes, with C the context rounded up to a whole panel:
        keys, float16: [n_layers, n_kv_heads, C / 16, head_size, 16], token t in panel t // 16,
            lane t % 16.
        values, float16: [n_layers, n_kv_heads, C, head_size].
        both, int8: [n_layers, n_kv_heads, C / 16, bytes of a block] uint8; see `kv_block_nbytes`.
    """

    def __init__(self, config: ModelConfig, context: int, kv_format: KVFormat = "float16") -> None:
        n_panels = -(-context // KV_PANEL)
        heads, d = (config.n_layers, config.n_kv_heads), config.head_size
        if kv_format == "int8":
            blocks = (*heads, n_panels, kv_block_nbytes(d))
            self.keys, self.values = lazy_zeros(blocks, np.uint8), lazy_zeros(blocks, np.uint8)
            self._panels = _int8_panels(self.keys, self.values, d)
        else:
            self.keys = lazy_zeros((*heads, n_panels, d, KV_PANEL), np.float16)
            self.values = lazy_zeros((*heads, n_panels * KV_PANEL, d), np.float16)
            by_panel = self.values.reshape(*heads, n_panels, KV_PANEL, d)
            self._panels = {"keys": self.keys.swapaxes(-1, -2), "values": by_panel}
        self.row_nbytes = kv_row_nbytes(config, kv_format)

    def compact(self, n_committed: int, path: Sequence[int]) -> None:
        """Moves rows ``n_committed + path[j]`` to ``n_committed + j``."""
        source = n_committed + np.asarray(path, np.int64)
        destination = n_committed + np.arange(len(path))
        moved = source != destination
        if not moved.any():
            return
        panel, lane = np.divmod(source[moved], KV_PANEL)
        to_panel, to_lane = np.divmod(destination[moved], KV_PANEL)
        for panels in self._panels.values():
            panels[:, :, to_panel, to_lane] = panels[:, :, panel, lane]

    def rows(self, start: int, stop: int) -> KVRows:
        """Returns copies of the rows of tokens ``start`` to ``stop``, the panels taken apart.

        Shapes: keys and values [n_layers, n_kv_heads, stop - start, head_size], float16 or int8;
            with int8 key_scales and value_scales [n_layers, n_kv_heads, stop - start] float16.
        """
        first, last = start // KV_PANEL, -(-stop // KV_PANEL)
        lane = first * KV_PANEL
        kv_rows = {}
        for name, panels in self._panels.items():
            shape = (*panels.shape[:2], stop - start, *panels.shape[4:])
            kv_rows[name] = np.empty(shape, panels.dtype)
            for of_layer, layer in zip(kv_rows[name], panels[:, :, first:last], strict=True):
                of_layer[:] = _in_a_row(layer)[:, start - lane : stop - lane]
        return kv_rows

    def load_rows(self, start: int, kv_rows: KVRows) -> None:
        """Puts rows as `rows` returns them in place, from token ``start`` on."""
        stop = start + kv_rows["keys"].shape[2]
        first, last = start // KV_PANEL, -(-stop // KV_PANEL)
        lane = first * KV_PANEL
        for name, panels in self._panels.items():
            for of_layer, layer in zip(kv_rows[name], panels[:, :, first:last], strict=True):
                plain = _in_a_row(layer)
                plain[:, start - lane : stop - lane] = of_layer
                layer[:] = plain.reshape(layer.shape)


def kv_row_nbytes(config: ModelConfig, kv_format: KVFormat) -> int:
    """Returns the bytes that one token takes in the KV cache."""
    n_heads = config.n_layers * config.n_kv_heads
    if kv_format == "int8":
        return 2 * n_heads * kv_block_nbytes(config.head_size) // KV_PANEL
    return 2 * n_heads * 2 * config.head_size


def _int8_panels(keys: Array, values: Array, head_size: int) -> dict[str, Array]:
    """Returns views of blocks by token.

    Shapes: keys and values [L, H, C / 16, 16, head_size], their scales [L, H, C / 16, 16].
    """
    lead = keys.shape[:3]
    key_codes, value_codes = (a[..., _SCALES_NBYTES:].view(np.int8) for a in (keys, values))
    by_channel = key_codes[..., : KV_PANEL * head_size].reshape(*lead, head_size, KV_PANEL)
    row_nbytes = value_codes.shape[-1] // KV_PANEL
    key_scales, value_scales = (a[..., :_SCALES_NBYTES].view(np.float16) for a in (keys, values))
    return {
        "keys": by_channel.swapaxes(-1, -2),
        "values": value_codes.reshape(*lead, KV_PANEL, row_nbytes)[..., :head_size],
        "key_scales": key_scales,
        "value_scales": value_scales,
    }


def _in_a_row(panels: Array) -> Array:
    """Returns panels of one layer as rows, in an array of its own.

    Shapes: [H, P, 16, ...] -> [H, 16 * P, ...].
    """
    n_heads, n_panels, n_lanes = panels.shape[:3]
    return panels.copy("C").reshape(n_heads, n_panels * n_lanes, *panels.shape[3:])


def lazy_zeros(shape: tuple[int, ...], dtype: type[np.generic]) -> Array:
    """Returns zeros whose memory is taken only when a page is first written.

    Huge pages are declined: each head of each layer would take 2 MB for its first token.

    Raises:
        SessionError: There are not that many addresses.
    """
    n_items = math.prod(shape)
    n_bytes = np.dtype(dtype).itemsize * n_items
    try:
        pages = mmap.mmap(-1, max(n_bytes, 1))
    except (OSError, OverflowError):
        raise SessionError(
            f"there is no room for a KV cache of {n_bytes} bytes: load with a smaller context"
        ) from None
    if sys.platform == "linux":
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype, n_items).reshape(shape)
