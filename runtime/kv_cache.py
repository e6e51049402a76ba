"""Keys and values of the fused backend, in the layout its attention kernel reads."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgedec.models.config import ModelConfig
from edgedec.runtime.session_state import KVRows

KV_PANEL = 16
"""Tokens that lie side by side in a panel of keys."""

Float16 = npt.NDArray[np.float16]


class PanelKVCache:
    """Keys and values of every layer, float16. The attention operator writes rows in place.

    Shapes, with C the context rounded up to a whole panel:
        keys: [n_layers, n_kv_heads, C / 16, head_size, 16], token t in panel t // 16, lane t % 16.
        values: [n_layers, n_kv_heads, C, head_size].
    """

    def __init__(self, config: ModelConfig, context: int) -> None:
        n_panels = -(-context // KV_PANEL)
        heads = (config.n_layers, config.n_kv_heads)
        self.keys = lazy_zeros((*heads, n_panels, config.head_size, KV_PANEL))
        self.values = lazy_zeros((*heads, n_panels * KV_PANEL, config.head_size))
        self.row_nbytes = 2 * 2 * config.n_layers * config.n_kv_heads * config.head_size

    def compact(self, n_committed: int, path: Sequence[int]) -> None:
        """Moves rows ``n_committed + path[j]`` to ``n_committed + j``."""
        source = n_committed + np.asarray(path, np.int64)
        destination = n_committed + np.arange(len(path))
        moved = source != destination
        if not moved.any():
            return
        source, destination = source[moved], destination[moved]
        self.values[:, :, destination] = self.values[:, :, source]
        panel, lane = np.divmod(source, KV_PANEL)
        to_panel, to_lane = np.divmod(destination, KV_PANEL)
        self.keys[:, :, to_panel, :, to_lane] = self.keys[:, :, panel, :, lane]

    def rows(self, start: int, stop: int) -> KVRows:
        """Returns copies of the rows of tokens ``start`` to ``stop``, the panels taken apart.

        Shapes: keys and values [n_layers, n_kv_heads, stop - start, head_size].
        """
        values = self.values[:, :, start:stop].copy()
        keys = np.empty_like(values)
        first, last = start // KV_PANEL, -(-stop // KV_PANEL)
        lane = first * KV_PANEL
        for of_layer, panels in zip(keys, self.keys[:, :, first:last], strict=True):
            of_layer[:] = _unpanelled(panels)[:, start - lane : stop - lane]
        return {"keys": keys, "values": values}

    def load_rows(self, start: int, kv_rows: KVRows) -> None:
        """Puts rows as `rows` returns them in place, from token ``start`` on."""
        keys, values = kv_rows["keys"], kv_rows["values"]
        stop = start + values.shape[2]
        self.values[:, :, start:stop] = values
        first, last = start // KV_PANEL, -(-stop // KV_PANEL)
        lane = first * KV_PANEL
        for of_layer, panels in zip(keys, self.keys[:, :, first:last], strict=True):
            plain = _unpanelled(panels)
            plain[:, start - lane : stop - lane] = of_layer
            n_heads, n_panels, head_size, _ = panels.shape
            by_panel = plain.reshape(n_heads, n_panels, KV_PANEL, head_size)
            panels[:] = by_panel.swapaxes(-1, -2)


def _unpanelled(panels: Float16) -> Float16:
    """Returns panels of keys as rows, in an array of its own.

    Shapes: [H, P, D, 16] -> [H, 16 * P, D].
    """
    n_heads, n_panels, head_size, n_lanes = panels.shape
    rows = np.empty((n_heads, n_panels, n_lanes, head_size), panels.dtype)
    rows[:] = panels.swapaxes(-1, -2)
    return rows.reshape(n_heads, n_panels * n_lanes, head_size)


def lazy_zeros(shape: tuple[int, ...]) -> Float16:
    """Returns zeros whose memory is taken only when a page is first written.

    Huge pages are declined: each head of each layer would take 2 MB for its first token.
    """
    n_bytes = 2 * int(np.prod(shape))
    pages = mmap.mmap(-1, max(n_bytes, 1))
    if sys.platform == "linux":
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, np.float16, n_bytes // 2).reshape(shape)
