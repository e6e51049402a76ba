"""The layouts of the KV cache against plain rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgedec.models.config import ModelConfig
from edgedec.models.errors import SessionError
from edgedec.models.kv_formats import KV_PANEL, kv_formats_of, kv_panels_of, kv_row_nbytes
from edgedec.runtime.backends.kv_cache import (
    PanelArena,
    PanelKVCache,
    lazy_zeros,
)
from edgedec.runtime.backends.slots import SlotRun
from edgedec.system import _linux

D = 4
CONFIG = ModelConfig("llama", 8, 8, 8, 2, 6, 3, D, 64, 1e-5)
Rows = dict[str, npt.NDArray[Any]]


@pytest.fixture(params=kv_formats_of("panels"))
def kv_cache(request: pytest.FixtureRequest) -> PanelKVCache:
    """Returns a KV cache of random numbers."""
    return random_kv_cache(request.param, seed=0)


def random_kv_cache(kv_format: str, seed: int) -> PanelKVCache:
    rng, kv_cache = np.random.default_rng(seed), PanelKVCache(PanelArena(CONFIG, 50, kv_format))
    for array in (kv_cache.arena.keys, kv_cache.arena.values):
        if array.dtype == np.uint8:
            array[:] = rng.integers(0, 120, array.shape)
        else:
            array[:] = rng.standard_normal(array.shape)
    return kv_cache


def kv_format_of(kv_cache: PanelKVCache) -> str:
    row_type = kv_cache.arena.panels["keys"].dtype
    return next(n for n in kv_formats_of("panels") if kv_panels_of(n).row_type == row_type)


def plain_rows(kv_cache: PanelKVCache) -> Rows:
    """Returns copies of everything by token, read number by number. Shapes: [L, H, C, ...]."""
    keys, values = kv_cache.arena.keys, kv_cache.arena.values
    if keys.dtype == np.float16:
        by_token = [keys[:, :, t // 16, :, t % 16] for t in range(64)]
        return {"keys": np.stack(by_token, axis=2), "values": values.copy()}
    is_k5v4 = kv_format_of(kv_cache) == "k5v4"
    row_type, n_bytes = (np.uint8, (D // 2 + 1, 16)) if is_k5v4 else (np.int8, (D, D))
    rows: Rows = {
        name: np.zeros((2, 3, 64, n), row_type)
        for name, n in zip(("keys", "values"), n_bytes, strict=True)
    }
    rows |= {name: np.zeros((2, 3, 64), np.float16) for name in ("key_scales", "value_scales")}
    for place in np.ndindex(2, 3, 64):
        layer, head, t = place
        of_keys, of_values = (array[layer, head, t // 16].tobytes() for array in (keys, values))
        lane = t % 16
        for name, block in (("key_scales", of_keys), ("value_scales", of_values)):
            rows[name][place] = np.frombuffer(block, np.float16, 1, 2 * lane)[0]
        for i in range(n_bytes[0]):
            rows["keys"][place][i] = of_keys[32 + 16 * i + lane]
        for i in range(n_bytes[1]):
            rows["values"][place][i] = of_values[32 + 16 * lane + i]
    return rows


def test_shapes() -> None:
    half, int8 = PanelKVCache(PanelArena(CONFIG, 50)), PanelKVCache(PanelArena(CONFIG, 50, "int8"))
    assert half.arena.values.shape == (2, 3, 64, D)
    assert half.arena.keys.shape == (2, 3, 64 // KV_PANEL, D, KV_PANEL)
    assert int8.arena.keys.shape == int8.arena.values.shape == (2, 3, 64 // KV_PANEL, 32 + 16 * 16)
    for kv_cache in (half, int8):
        assert kv_cache.arena.keys.nbytes + kv_cache.arena.values.nbytes == 64 * kv_cache.row_nbytes
    wide = ModelConfig("llama", 8, 8, 8, 2, 6, 3, 64, 64, 1e-5)
    assert kv_row_nbytes(wide, "float16") == 2 * 2 * 3 * 64 * 2
    assert kv_row_nbytes(wide, "int8") == 2 * 2 * 3 * (64 + 2)
    assert kv_row_nbytes(wide, "k5v4") == 2 * 3 * (40 + 2 + 32 + 2)


@pytest.mark.parametrize(
    ("n_committed", "path"),
    [(0, ()), (0, (0, 1, 2)), (5, (0, 2, 3, 7)), (14, (1, 3, 4)), (15, (20,)), (30, (5, 6, 9))],
)
def test_compact_equals_plain_rows(
    kv_cache: PanelKVCache, n_committed: int, path: tuple[int, ...]
) -> None:
    before = plain_rows(kv_cache)
    kv_cache.compact(n_committed, path)
    kept = [*range(n_committed), *(n_committed + i for i in path)]
    for name, rows in plain_rows(kv_cache).items():
        np.testing.assert_array_equal(rows[:, :, : len(kept)], before[name][:, :, kept])
        np.testing.assert_array_equal(rows[:, :, len(kept) :], before[name][:, :, len(kept) :])


@pytest.mark.parametrize("stop", [1, 16, 20, 48])
@pytest.mark.parametrize("start", [0, 1, 15, 16, 17])
def test_rows_equal_plain_rows(kv_cache: PanelKVCache, start: int, stop: int) -> None:
    """Copied out, and put into another KV cache, whose other rows stay."""
    stop = max(start, stop)
    sink = random_kv_cache(kv_format_of(kv_cache), seed=1)
    before, plain = plain_rows(sink), plain_rows(kv_cache)
    kv_rows = kv_cache.rows(start, stop)
    sink.load_rows(start, kv_rows)
    assert kv_rows.keys() == plain.keys()
    for name, rows in plain_rows(sink).items():
        np.testing.assert_array_equal(kv_rows[name], plain[name][:, :, start:stop])
        assert kv_rows[name].dtype == plain[name].dtype
        before[name][:, :, start:stop] = plain[name][:, :, start:stop]
        np.testing.assert_array_equal(rows, before[name])
    assert not np.shares_memory(kv_rows["values"], kv_cache.arena.values)


def test_no_context_takes_no_memory() -> None:
    """What is left of a closed one; restoring nothing into it works."""
    for kv_format in kv_formats_of("panels"):
        kv_cache = PanelKVCache(PanelArena(CONFIG, 0, kv_format))
        assert kv_cache.arena.keys.nbytes == kv_cache.arena.values.nbytes == 0
        kv_cache.load_rows(0, kv_cache.rows(0, 0))


@pytest.mark.parametrize("kv_format", kv_formats_of("panels"))
def test_slots_of_an_arena_are_apart(kv_format: str) -> None:
    source, arena = random_kv_cache(kv_format, seed=0), PanelArena(CONFIG, 50, kv_format, n_slots=3)
    slots = [PanelKVCache(arena, i) for i in range(3)]
    slots[1].load_rows(0, source.rows(0, 50))
    assert [slot.places for slot in slots] == [(0, 4), (4, 4), (8, 4)]
    for name, rows in slots[1].rows(0, 50).items():
        np.testing.assert_array_equal(rows, source.rows(0, 50)[name])
    for other in (slots[0], slots[2]):
        assert not any(rows.any() for rows in other.rows(0, 64).values())


def test_places_of_a_text_in_several_slots_are_rows_of_sequences() -> None:
    text = PanelKVCache(PanelArena(CONFIG, 50, n_slots=3), 1)
    text.lie_in((SlotRun(0, 3), SlotRun(1, 4)))
    assert text.places == (0, 3, -1, 0, 0, 7, 1)


def test_a_slot_given_back_takes_no_memory() -> None:
    arena = PanelArena(CONFIG, 40960, n_slots=3)
    first, second = PanelKVCache(arena), PanelKVCache(arena, 1)
    ones = {name: np.ones_like(rows) for name, rows in first.rows(0, 40960).items()}
    for slot in (first, second):
        slot.load_rows(0, ones)
    arena.discard(1)
    assert all((rows == 1).all() for rows in first.rows(0, 40960).values())
    if sys.platform == "linux":
        assert not any(rows.any() for rows in second.rows(16, 40944).values())


def test_untouched_pages_take_no_memory() -> None:
    status = Path("/proc/self/statm")
    if not status.exists():
        pytest.skip("no /proc here to read resident memory from")

    def resident_pages() -> int:
        return int(status.read_text().split()[1])

    before = resident_pages()
    zeros = lazy_zeros((64, 1 << 20), np.float16)  # 128 MB
    zeros[:, 0] = 1
    assert resident_pages() - before < 4096
    assert zeros[3, :2].tolist() == [1, 0]


@pytest.mark.parametrize("n_missing", [0, 1])
def test_room_is_what_the_container_grants(n_missing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 rows fit to the last byte."""
    n_bytes = 64 * PanelKVCache(PanelArena(CONFIG, 64)).row_nbytes
    monkeypatch.setattr(_linux, "memory_limit", lambda: n_bytes - n_missing)
    if n_missing == 0 or sys.platform == "win32":
        PanelArena(CONFIG, 64, n_slots=3)
    else:
        with pytest.raises(SessionError, match=f"no room for a KV cache of {n_bytes} bytes"):
            PanelArena(CONFIG, 64, n_slots=3)
