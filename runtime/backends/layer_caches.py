"""Keys and values of all layers: of the whole text in some, of its end in those with a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from weakref import finalize

from edgedec.models.config import ModelConfig
from edgedec.models.errors import SessionError
from edgedec.models.graph import K_CACHE, K_RING, MAX_SEQUENCES, V_CACHE, V_RING, KVLayout
from edgedec.runtime.backends.kv_cache import Array, PanelArena, PanelKVCache, Places
from edgedec.runtime.backends.slots import SLOTS_EACH, Slots, TextSlots
from edgedec.runtime.sequences.state import LATEST, KVRows


class Text(NamedTuple):
    """A text's part of `LayerArenas`. number: its slot among the rings, and its name."""

    number: int
    whole: TextSlots


class LayerArenas:
    """Memory of several texts of one context, whose rows may share passes.

    One arena for the layers that keep every token, where texts that begin alike may have that in
    common; one for those with a window, where a slot is a ring.
    """

    def __init__(
        self,
        config: ModelConfig,
        context: int,
        layout: KVLayout,
        n_texts: int,
        slots_each: int = SLOTS_EACH,
    ) -> None:
        self.config, self.context, self.layout = config, context, layout
        self.can_share = slots_each == SLOTS_EACH
        n_slots = n_texts * slots_each
        whole = [i for i in config.kv_layers if i not in layout.ring_layers]
        self.whole = PanelArena(config, context, layout.format, whole, n_slots)
        self.ring = self.make_ring(layout.ring_rows, n_texts)
        self._slots = Slots(self.whole, n_slots)
        self._free = list(reversed(range(n_texts)))

    @classmethod
    def largest(cls, config: ModelConfig, context: int, layout: KVLayout) -> LayerArenas:
        """Returns arenas of as many slots as there are addresses for.

        Raises:
            SessionError: There are none for one.
        """
        n_texts, slots_each = MAX_SEQUENCES, SLOTS_EACH
        while True:
            try:
                return cls(config, context, layout, n_texts, slots_each)
            except SessionError:
                if n_texts == 1:
                    raise
            if slots_each > 1:
                slots_each = 1
            else:
                n_texts //= 2

    def make_ring(self, n_rows: int, n_slots: int = 1) -> PanelArena:
        """Returns memory for the latest ``n_rows`` of layers with a window."""
        n_rows, layers = min(n_rows, self.context), self.layout.ring_layers
        return PanelArena(self.config, n_rows, self.layout.format, layers, n_slots)

    def take(self) -> Text | None:
        """Returns room for a text; None if there is none."""
        try:
            number = self._free.pop()
        except IndexError:
            return None
        return Text(number, TextSlots(self._slots, number))

    def give_back(self, text: Text) -> None:
        """Takes room back, and the memory that no other text needs."""
        text.whole.close()
        self.ring.discard(text.number)
        self._free.append(text.number)


class LayerCaches:
    """Keys and values of one text in all layers, in `LayerArenas`.

    A ring keeps what a pass behind the tokens that are to stay looks at, and has rows to spare,
    which is how far back a text can be cut (`reachable`). Where a pass adds more than those, the
    text gets a longer ring of its own.
    """

    def __init__(self, arenas: LayerArenas, text: Text) -> None:
        self._arenas = arenas
        self._slots = text.whole
        self.places: tuple[Places, Places] = (), ()  # in each of `arenas`
        self.look_back = arenas.config.look_back if arenas.layout.ring_layers else 0
        self.whole = PanelKVCache(arenas.whole)
        self.ring = PanelKVCache(arenas.ring, text.number)
        self._lie()
        self._first = 0  # token from which on the ring has all rows
        self._stop = 0  # tokens whose rows it had at most
        self._release = finalize(self, arenas.give_back, text)

    @property
    def arrays(self) -> Mapping[str, Array]:
        """What the graph's inputs of these names are bound to."""
        whole, ring = self.whole.arena, self.ring.arena
        arrays = {K_CACHE: whole.keys, V_CACHE: whole.values}
        if ring.n_layers:
            arrays |= {K_RING: ring.keys, V_RING: ring.values}
        return arrays

    @property
    def n_layers(self) -> int:
        """Layers of the model."""
        return self._arenas.config.n_layers

    @property
    def arenas(self) -> tuple[PanelArena, PanelArena]:
        """Where the rows are; texts of the same may share a pass."""
        return self.whole.arena, self.ring.arena

    def close(self) -> None:
        """Gives the room back; the rows are gone."""
        self._release()

    def nbytes(self, n_tokens: int) -> int:
        """Returns the bytes of the rows of ``n_tokens``."""
        n_latest = min(n_tokens, self.ring.n_rows)
        return n_tokens * self.whole.row_nbytes + n_latest * self.ring.row_nbytes

    def reachable(self, n_tokens: int) -> int:
        """Returns ``n_tokens`` if the rows are there that a pass behind them looks at, else 0."""
        return n_tokens if self._first <= max(0, n_tokens - self.look_back) else 0

    def reserve(self, n_kept: int, stop: int) -> bool:
        """Makes room for rows up to ``stop``; passes may still follow the first ``n_kept``.

        Returns whether the arrays are others now.
        """
        if self._slots.keep(n_kept):
            self._lie()
        if not self.ring.n_layers:
            return False
        n_needed = stop - max(0, n_kept - self.look_back)
        has_grown = n_needed > self.ring.n_rows
        if has_grown:
            old, n_rows = self.ring, max(n_needed, 2 * self.ring.n_rows)
            self.ring = PanelKVCache(self._arenas.make_ring(n_rows))
            self.ring.load_rows(self._first, old.rows(self._first, self._stop))
            self._lie()
        self._note(stop)
        return has_grown

    def share(self, other: LayerCaches, n_tokens: int) -> bool:
        """Makes the first tokens of another text those of this one, without copies.

        Layers with a window have copies of the rows that a pass behind those looks at. Returns
        whether that can be; nothing changed where it cannot.
        """
        arenas = self._arenas
        if arenas is not other._arenas or not arenas.can_share or self is other:
            return False
        if self.ring.n_layers:
            first = max(other._first, n_tokens - self.look_back, 0)
            if n_tokens - first > self.ring.n_rows or other.reachable(n_tokens) != n_tokens:
                return False
            self.ring.load_rows(first, other.ring.rows(first, n_tokens))
            self._first, self._stop = first, n_tokens
        self._slots.share(other._slots, n_tokens)
        self._lie()
        return True

    def _lie(self) -> None:
        """Learns where the rows are from now on."""
        self.whole.lie_in(self._slots.runs)
        self.places = self.whole.places, self.ring.places

    def truncate(self, n_tokens: int) -> None:
        """Learns that only the first ``n_tokens`` are left."""
        if n_tokens == 0:
            self._first = self._stop = 0

    def compact(self, n_committed: int, path: Sequence[int]) -> None:
        """Moves rows ``n_committed + path[j]`` to ``n_committed + j``."""
        for panels in (self.whole, self.ring):
            if panels.n_layers:
                panels.compact(n_committed, path)

    def rows(self, start: int, stop: int) -> KVRows:
        """Returns copies of the rows of tokens ``start`` to ``stop``.

        Those of layers with a window, under names that begin with `LATEST`, are all there are, be
        they before ``start``.
        """
        kv_rows = dict(self.whole.rows(start, stop)) if self.whole.n_layers else {}
        if self.ring.n_layers:
            latest = self.ring.rows(min(self._first, stop), stop)
            kv_rows |= {LATEST + name: rows for name, rows in latest.items()}
        return kv_rows

    def load_rows(self, start: int, stop: int, kv_rows: KVRows) -> None:
        """Puts rows as `rows` returns them in place; they end at token ``stop``."""
        if self.whole.n_layers:
            if self._slots.keep(start):
                self._lie()
            self.whole.load_rows(start, kv_rows)
        if not self.ring.n_layers:
            return
        names = {name.removeprefix(LATEST): name for name in kv_rows if name.startswith(LATEST)}
        first = max(stop - kv_rows[names["keys"]].shape[2], stop - self.ring.n_rows)
        latest = {name: kv_rows[theirs][:, :, first - stop :] for name, theirs in names.items()}
        if first > start:
            self._first = first
        self._note(stop)
        if first < stop:
            self.ring.load_rows(first, latest)

    def _note(self, stop: int) -> None:
        """Learns that rows up to ``stop`` are written, over the oldest."""
        self._stop = max(self._stop, stop)
        self._first = max(self._first, self._stop - self.ring.n_rows)
