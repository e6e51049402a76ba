"""Who has which memory of an arena: texts have slots, and may read where another's text begins."""

from __future__ import annotations

from threading import RLock
from typing import NamedTuple, Protocol

from edgedec.models.errors import SessionError
from edgedec.models.kv_formats import KV_PANEL

_MAX_READ = 3
"""Most runs of a text in slots of others: each slot may be kept for one reader that is left."""

SLOTS_EACH = 1 + _MAX_READ
"""Slots for each text, so that there is a free one whenever a text has to move."""


class Memory(Protocol):
    """An arena. In every slot a panel of a text has the same place."""

    slot_panels: int

    def discard(self, slot: int, first_panel: int) -> None:
        """Gives the memory of a slot back from a panel on."""

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        """Copies the panels ``start`` to ``stop`` from one slot to another."""


class SlotRun(NamedTuple):
    """Panels of a text in one slot, from where the run before ends to ``stop``."""

    slot: int
    stop: int


class Slots:
    """The slots of an arena. A slot is free when no text owns it and none reads it.

    That is checked whenever a text has moved, shared or ended.
    """

    def __init__(self, memory: Memory, n_slots: int) -> None:
        self.memory = memory
        self.lock = RLock()  # texts are closed wherever the last reference to them ends
        self._n_slots = n_slots
        self._free = list(reversed(range(n_slots)))
        self._owned: set[int] = set()
        self.readers: dict[int, dict[int, int]] = {}  # slot -> text -> panels

    def take(self) -> int:
        """Returns a free slot, which is the caller's."""
        slot = self._free.pop()
        self._owned.add(slot)
        return slot

    def leave(self, slot: int) -> None:
        """Takes a slot back from its owner. What others read stays until they do no longer."""
        self._owned.discard(slot)
        self._tidy(slot)

    def read(self, slot: int, text: int, n_panels: int) -> None:
        """Learns that ``text`` reads the first panels of a slot that is not its own."""
        self.readers.setdefault(slot, {})[text] = n_panels

    def unread(self, slot: int, text: int) -> None:
        """Learns that ``text`` reads a slot no longer."""
        readers = self.readers.get(slot, {})
        if readers.pop(text, None) is None:
            return
        if not readers:
            del self.readers[slot]
        if slot not in self._owned:
            self._tidy(slot)

    def n_read(self, slot: int) -> int:
        """Returns how many of the first panels of a slot are read by others than its owner."""
        return max(self.readers.get(slot, {}).values(), default=0)

    def check(self) -> None:
        """Raises a SessionError where a slot is free and in use, or neither."""
        free, used = set(self._free), self._owned | self.readers.keys()
        is_whole = free.isdisjoint(used) and free | used == set(range(self._n_slots))
        if not is_whole or len(free) < len(self._free) or not all(self.readers.values()):
            raise SessionError(
                f"{self._n_slots} slots contradict one another: {sorted(self._free)} are free, "
                f"{sorted(used)} are in use. This is a fault of edgedec: close the engine"
            )

    def _tidy(self, slot: int) -> None:
        n_read = self.n_read(slot)
        self.memory.discard(slot, n_read)
        if n_read == 0:
            self._free.append(slot)


class TextSlots:
    """Where one text lies: its beginning in slots of others perhaps, all else in its own.

    number: names it among the texts of the arena.
    """

    def __init__(self, slots: Slots, number: int) -> None:
        self._slots = slots
        self._number = number
        with slots.lock:
            self._own_slot = slots.take()
        self.runs: tuple[SlotRun, ...] = (SlotRun(self._own_slot, slots.memory.slot_panels),)

    def close(self) -> None:
        """Gives everything back."""
        with self._slots.lock:
            for slot in self._foreign():
                self._slots.unread(slot, self._number)
            self._slots.leave(self._own_slot)
            self._slots.check()

    def share(self, other: TextSlots, n_tokens: int) -> None:
        """Makes the first tokens of another text those of this one; all else is lost."""
        with self._slots.lock:
            self._follow(other.runs, n_tokens)

    def keep(self, n_tokens: int) -> bool:
        """Makes everything behind the first tokens the text's own, to be written.

        Returns whether anything changed.
        """
        if len(self.runs) == 1 and self._own_slot not in self._slots.readers:
            return False
        n_panels = n_tokens // KV_PANEL
        n_before = self.runs[-2].stop if len(self.runs) > 1 else 0
        if n_before <= n_panels and self._slots.n_read(self._own_slot) <= n_panels:
            return False
        with self._slots.lock:
            self._follow(self.runs, n_tokens)
        return True

    def _follow(self, runs: tuple[SlotRun, ...], n_tokens: int) -> None:
        """Lies where ``runs`` do for the first tokens, and in a slot of its own behind them."""
        slots, memory = self._slots, self._slots.memory
        n_panels, n_rest = divmod(n_tokens, KV_PANEL)
        old, were_read = self._own_slot, self._foreign()
        if slots.n_read(old) > n_panels:
            self._own_slot = slots.take()
        read, copied = _cut(runs, n_panels, self._own_slot)
        for run, start in copied:
            memory.copy(run.slot, self._own_slot, start, run.stop)
        source = next(run.slot for run in runs if n_panels < run.stop or run is runs[-1])
        if n_rest and source != self._own_slot:
            memory.copy(source, self._own_slot, n_panels, n_panels + 1)
        self.runs = (*read, SlotRun(self._own_slot, memory.slot_panels))
        for run in read:
            if run.slot != self._own_slot:
                slots.read(run.slot, self._number, run.stop)
        for slot in were_read - self._foreign():
            slots.unread(slot, self._number)
        if self._own_slot != old:
            slots.leave(old)
        slots.check()

    def _foreign(self) -> set[int]:
        return {run.slot for run in self.runs} - {self._own_slot}


def _cut(
    runs: tuple[SlotRun, ...], n_panels: int, n_owned: int
) -> tuple[list[SlotRun], list[tuple[SlotRun, int]]]:
    """Returns the runs of the first panels but those that end in ``n_owned``, and the surplus.

    Each surplus run comes with the panel where it starts: these are to be copied.
    """
    kept, start = [], 0
    for run in runs:
        if start < n_panels:
            kept.append((SlotRun(run.slot, min(run.stop, n_panels)), start))
        start = run.stop
    while kept and kept[-1][0].slot == n_owned:
        kept.pop()
    return [run for run, _ in kept[:_MAX_READ]], kept[_MAX_READ:]
