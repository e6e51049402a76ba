"""Texts that have beginnings in common, against texts with memory of their own."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.models.errors import SessionError
from edgedec.models.kv_formats import KV_PANEL
from edgedec.runtime.backends.slots import SLOTS_EACH, Slots, TextSlots

N_PANELS, N_TEXTS = 6, 5
N_ROWS = N_PANELS * KV_PANEL


class Rows:
    """An arena whose rows are numbers; those that nobody needs are -1."""

    slot_panels = N_PANELS

    def __init__(self) -> None:
        self.rows = np.full((N_TEXTS * SLOTS_EACH, N_PANELS, KV_PANEL), -1)

    def discard(self, slot: int, first_panel: int) -> None:
        self.rows[slot, first_panel:] = -1

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        self.rows[target, start:stop] = self.rows[source, start:stop]


class Text:
    """A text in slots, and what it should read there."""

    def __init__(self, memory: Rows, slots: Slots, number: int) -> None:
        self.memory, self.slots = memory, TextSlots(slots, number)
        self.rows: list[int] = []

    def write(self, n_kept: int, rows: list[int]) -> None:
        self.slots.keep(n_kept)
        self.rows[n_kept:] = rows
        own = self.memory.rows[self.slots.runs[-1].slot].reshape(-1)
        own[n_kept : len(self.rows)] = rows

    def share(self, other: Text, n_rows: int) -> None:
        self.slots.share(other.slots, n_rows)
        self.rows = other.rows[:n_rows]

    def check(self) -> None:
        found, start = [], 0
        for run in self.slots.runs:
            found += [*self.memory.rows[run.slot, start : run.stop].reshape(-1)]
            start = run.stop
        assert found[: len(self.rows)] == self.rows
        assert len(self.slots.runs) <= SLOTS_EACH


@pytest.mark.parametrize("seed", range(30))
def test_each_reads_what_it_wrote(seed: int) -> None:
    rng, memory = np.random.default_rng(seed), Rows()
    slots = Slots(memory, N_TEXTS * SLOTS_EACH)
    texts = [Text(memory, slots, i) for i in range(N_TEXTS)]
    for _ in range(300):
        one, other = rng.permutation(N_TEXTS)[:2]
        text, kind = texts[one], rng.choice(["write", "share", "close"], p=[0.5, 0.45, 0.05])
        if kind == "close":
            text.slots.close()
            texts[one] = Text(memory, slots, one)
        elif kind == "share":
            text.share(texts[other], int(rng.integers(0, len(texts[other].rows) + 1)))
        else:
            n_kept = int(rng.integers(0, len(text.rows) + 1))
            if rng.random() < 0.6:
                n_kept = len(text.rows)
            n = int(rng.integers(0, N_ROWS - n_kept + 1)) // int(rng.integers(1, 5))
            text.write(n_kept, rng.integers(0, 1 << 30, n).tolist())
        for each in texts:
            each.check()
    for text in texts:
        text.slots.close()
    assert (memory.rows == -1).all()  # nothing is kept for nobody
    assert sorted(slots.take() for _ in range(N_TEXTS * SLOTS_EACH))[-1] == len(memory.rows) - 1


def test_what_begins_alike_is_kept_once() -> None:
    memory = Rows()
    slots = Slots(memory, N_TEXTS * SLOTS_EACH)
    texts = [Text(memory, slots, i) for i in range(N_TEXTS)]
    texts[0].write(0, list(range(70)))
    for text in texts[1:]:
        text.share(texts[0], 64)
        text.write(64, [7])
    assert (memory.rows >= 0).sum() == 70 + N_TEXTS - 1
    texts[0].write(3, [9])  # it goes on elsewhere, with a copy of the panel that it changes
    assert texts[1].rows == [*range(64), 7]
    for text in texts:
        text.check()
    assert (memory.rows >= 0).sum() == 64 + N_TEXTS - 1 + KV_PANEL


@pytest.mark.parametrize("fault", ["taken twice", "lost", "free and read", "free twice"])
def test_slots_that_contradict_one_another_are_found(fault: str) -> None:
    slots = Slots(Rows(), N_TEXTS * SLOTS_EACH)
    first, second = TextSlots(slots, 0), TextSlots(slots, 1)
    second.share(first, KV_PANEL)
    if fault == "taken twice":
        slots._free.append(first.runs[0].slot)
    elif fault == "lost":
        slots._free.pop()
    elif fault == "free and read":
        slots.read(slots._free[0], 1, 1)
    else:
        slots._free.append(slots._free[0])
    with pytest.raises(SessionError, match="slots contradict one another"):
        second.close()
