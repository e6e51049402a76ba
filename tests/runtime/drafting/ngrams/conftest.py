"""What the tests of n-gram stores share: a place for one, and how it is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.runtime.drafting.ngrams.ngram_store import NgramStore

HASH = "ab" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.ngrams"


def open_store(path: Path, max_bytes: int = 1 << 20) -> NgramStore:
    return NgramStore.open(path, HASH, max_bytes)
