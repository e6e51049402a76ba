"""Compaction of the panel layout against plain rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from edgedec.models.config import ModelConfig
from edgedec.runtime.kv_cache import KV_PANEL, PanelKVCache, lazy_zeros


@pytest.fixture
def config() -> ModelConfig:
    return ModelConfig("llama", 8, 8, 8, 2, 6, 3, 4, 64, 1e-5)


def plain_keys(kv_cache: PanelKVCache) -> npt.NDArray[np.float16]:
    """Returns keys [L, H, C, d], as values are laid out."""
    keys = kv_cache.keys.swapaxes(-1, -2)
    return keys.reshape(*keys.shape[:2], -1, keys.shape[-1])


@pytest.mark.parametrize(
    ("n_committed", "path"),
    [(0, ()), (0, (0, 1, 2)), (5, (0, 2, 3, 7)), (14, (1, 3, 4)), (15, (20,)), (30, (5, 6, 9))],
)
def test_compact_equals_plain_rows(
    config: ModelConfig, n_committed: int, path: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    kv_cache = PanelKVCache(config, 50)
    assert kv_cache.values.shape == (2, 3, 64, 4)
    assert kv_cache.keys.shape == (2, 3, 64 // KV_PANEL, 4, KV_PANEL)
    kv_cache.keys[:] = rng.standard_normal(kv_cache.keys.shape)
    kv_cache.values[:] = rng.standard_normal(kv_cache.values.shape)
    before = plain_keys(kv_cache).copy(), kv_cache.values.copy()
    kv_cache.compact(n_committed, path)
    kept = [*range(n_committed), *(n_committed + i for i in path)]
    for rows, old in zip((plain_keys(kv_cache), kv_cache.values), before, strict=True):
        np.testing.assert_array_equal(rows[:, :, : len(kept)], old[:, :, kept])


def test_untouched_pages_take_no_memory() -> None:
    status = Path("/proc/self/statm")
    if not status.exists():
        pytest.skip("no /proc here to read resident memory from")

    def resident_pages() -> int:
        return int(status.read_text().split()[1])

    before = resident_pages()
    zeros = lazy_zeros((64, 1 << 20))  # 128 MB
    zeros[:, 0] = 1
    assert resident_pages() - before < 4096
    assert zeros[3, :2].tolist() == [1, 0]
