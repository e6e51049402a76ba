"""Keys and values of the fused backend, in the layout its attention kernel reads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgedec.models.config import ModelConfig
from edgedec.models.errors import SessionError
from edgedec.models.kv_formats import KV_PANEL, kv_panels_of, kv_row_nbytes
from edgedec.runtime.backends.slots import SlotRun
from edgedec.runtime.sequences.state import KVRows
from edgedec.system.memory import discard_pages, memory_bytes, zeroed_pages

Array = npt.NDArray[Any]
Places = tuple[int, ...]
"""Where a text's panels are in an arena, in order: the first of some, and how many follow it.

The rows have the form of `SEQUENCES`. A text's first row begins with its counts; the others begin
with `_MORE_PLACES` in their place.
"""

_MORE_PLACES = -1, 0, 0
"""The row goes on with the text of the row before it."""


class PanelArena:
    """Memory for keys and values of some layers of several texts, each of which has a slot.

    The attention operator writes rows in place. Pages that nobody wrote to take no memory.

    Shapes: keys and values [n_layers, n_kv_heads, ...], behind those as `KVPanels` of the format
        says, for the rows of all slots, whole panels of them.
    """

    def __init__(
        self,
        config: ModelConfig,
        n_rows: int,
        kv_format: str = "float16",
        layers: Sequence[int] | None = None,
        n_slots: int = 1,
    ) -> None:
        """Makes an empty one. n_rows: of a slot, at least. layers: all with some if None.

        Raises:
            SessionError: One text could outgrow the memory of this machine.
        """
        self.n_slots = n_slots
        self.slot_panels = -(-n_rows // KV_PANEL)
        layers = config.kv_layers if layers is None else layers
        self.n_layers = len(layers)
        self.row_nbytes = kv_row_nbytes(config, kv_format, layers)
        _check_room(self.row_nbytes * self.slot_panels * KV_PANEL)
        heads = (self.n_layers, config.n_kv_heads)
        d = config.head_size_of(layers[0]) if layers else config.head_size
        n_panels = n_slots * self.slot_panels
        panels = kv_panels_of(kv_format)
        self.keys, self.values = (
            lazy_zeros((*heads, *shape), np.dtype(panels.element).type)
            for shape in panels.shapes(n_panels, n_panels * KV_PANEL, d)
        )
        self.panels = panels.views(self.keys, self.values, d)

    def discard(self, slot: int, first_panel: int = 0) -> None:
        """Gives the memory of a slot back, from a panel on; its rows may be anything then."""
        for array in (self.keys, self.values):
            if array.nbytes:
                _discard(array, slot, self.n_slots, first_panel, self.slot_panels)

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        """Copies the panels ``start`` to ``stop`` from one slot to another."""
        of_source, of_target = (
            slice(slot * self.slot_panels + start, slot * self.slot_panels + stop)
            for slot in (source, target)
        )
        for panels in self.panels.values():
            panels[:, :, of_target] = panels[:, :, of_source]


class PanelKVCache:
    """Keys and values of one text in a slot of an arena, or its beginning in slots of others.

    Token t has row t modulo the rows of the slot: of texts that are longer, the latest tokens are
    kept.
    """

    def __init__(self, arena: PanelArena, slot: int = 0) -> None:
        self.arena = arena
        self.n_layers = arena.n_layers
        self.n_rows = arena.slot_panels * KV_PANEL
        self.row_nbytes = arena.row_nbytes
        self.lie_in((SlotRun(slot, arena.slot_panels),))

    def lie_in(self, runs: Sequence[SlotRun]) -> None:
        """Learns where the text's panels are: in the last slot those that are written."""
        n_panels, starts = self.arena.slot_panels, [0, *(run.stop for run in runs[:-1])]
        self._slot_runs = tuple(runs)
        places = [
            (run.slot * n_panels + start, run.stop - start)
            for run, start in zip(runs, starts, strict=True)
        ]
        self.places: Places = sum(((*_MORE_PLACES, *more) for more in places[1:]), places[0])
        first = runs[-1].slot * n_panels
        of_text = slice(first, first + n_panels)
        self._panels = {name: panels[:, :, of_text] for name, panels in self.arena.panels.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, whether or not they were ever written."""
        return self.n_rows * self.row_nbytes

    def compact(self, n_committed: int, path: Sequence[int]) -> None:
        """Moves rows ``n_committed + path[j]`` to ``n_committed + j``."""
        source = n_committed + np.asarray(path, np.int64)
        destination = n_committed + np.arange(len(path))
        moved = source != destination
        if not moved.any():
            return
        panel, lane = np.divmod(source[moved] % self.n_rows, KV_PANEL)
        to_panel, to_lane = np.divmod(destination[moved] % self.n_rows, KV_PANEL)
        for panels in self._panels.values():
            panels[:, :, to_panel, to_lane] = panels[:, :, panel, lane]

    def rows(self, start: int, stop: int) -> KVRows:
        """Returns copies of the rows of tokens ``start`` to ``stop``, the panels taken apart.

        Shapes: keys and values [n_layers, n_kv_heads, stop - start, head_size], and what else
            `KVPanels.views` names, such as scales [n_layers, n_kv_heads, stop - start].
        """
        kv_rows = {}
        for name, panels in self._panels.items():
            shape = (*panels.shape[:2], stop - start, *panels.shape[4:])
            kv_rows[name] = np.empty(shape, panels.dtype)
            for run in self._runs(start, stop):
                rows = self.arena.panels[name][:, :, run.placed(self.arena.slot_panels)]
                for of_layer, layer in zip(kv_rows[name], rows, strict=True):
                    of_layer[:, run.tokens] = _in_a_row(layer)[:, run.lanes]
        return kv_rows

    def load_rows(self, start: int, kv_rows: KVRows) -> None:
        """Puts rows as `rows` returns them in place, from token ``start`` on."""
        stop = start + kv_rows["keys"].shape[2]
        for name, panels in self._panels.items():
            for run in self._runs(start, stop):
                for of_layer, layer in zip(kv_rows[name], panels[:, :, run.panels], strict=True):
                    plain = _in_a_row(layer)
                    plain[:, run.lanes] = of_layer[:, run.tokens]
                    layer[:] = plain.reshape(layer.shape)

    def _runs(self, start: int, stop: int) -> Iterator[_Run]:
        """Yields where tokens ``start`` to ``stop`` lie, cut where a slot ends."""
        token = start
        while token < stop:
            row = token % self.n_rows
            slot, end = next(run for run in self._slot_runs if row < run.stop * KV_PANEL)
            n = min(stop - token, end * KV_PANEL - row)
            first = row // KV_PANEL
            yield _Run(
                slot=slot,
                tokens=slice(token - start, token - start + n),
                panels=slice(first, -(-(row + n) // KV_PANEL)),
                lanes=slice(row - first * KV_PANEL, row - first * KV_PANEL + n),
            )
            token += n


class _Run(NamedTuple):
    """Tokens whose rows follow one another, numbered among those asked for.

    panels: of ``slot``. lanes: their rows, counted from the first row of ``panels``.
    """

    slot: int
    tokens: slice
    panels: slice
    lanes: slice

    def placed(self, slot_panels: int) -> slice:
        """Returns the panels counted from the first of the arena."""
        first = self.slot * slot_panels
        return slice(first + self.panels.start, first + self.panels.stop)


def _in_a_row(panels: Array) -> Array:
    """Returns panels of one layer as rows, in an array of its own.

    Shapes: [H, P, 16, ...] -> [H, 16 * P, ...].
    """
    n_heads, n_panels, n_lanes = panels.shape[:3]
    return panels.copy("C").reshape(n_heads, n_panels * n_lanes, *panels.shape[3:])


def lazy_zeros(shape: tuple[int, ...], dtype: type[np.generic]) -> Array:
    """Returns zeros whose memory is taken only when a page is first written.

    Raises:
        SessionError: There are not that many addresses.
    """
    n_items = math.prod(shape)
    n_bytes = np.dtype(dtype).itemsize * n_items
    try:
        pages = zeroed_pages(max(n_bytes, 1))
    except (OSError, OverflowError):
        raise _no_room(n_bytes) from None
    return np.frombuffer(pages, dtype, n_items).reshape(shape)


def _check_room(n_bytes: int) -> None:
    """Raises a SessionError for a cache that memory could not hold, were all of it written."""
    if n_bytes > memory_bytes()[0]:
        raise _no_room(n_bytes)


def _no_room(n_bytes: int) -> SessionError:
    return SessionError(
        f"there is no room for a KV cache of {n_bytes} bytes: use a smaller --context"
    )


def _discard(array: Array, slot: int, n_slots: int, n_kept: int, n_panels: int) -> None:
    """Gives the pages of a slot of ``array`` [L, H, ...] back, behind its first panels."""
    head_nbytes = array.strides[1]
    slot_nbytes = head_nbytes // n_slots
    kept_nbytes = slot_nbytes // n_panels * n_kept
    for head in range(array.shape[0] * array.shape[1]):
        start = array.ctypes.data + head * head_nbytes + slot * slot_nbytes + kept_nbytes
        discard_pages(start, slot_nbytes - kept_nbytes)
