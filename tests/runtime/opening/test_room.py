"""Models that memory has no room for."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.room import disk_warning
from edgedec.system import memory
from edgedec.system.files import read_rate


def test_what_is_said() -> None:
    assert disk_warning(2_000_000_000, 1_000_000_000, 2e9) == (
        "the model has 2.00 GB and 1.00 GB of memory are available: each pass reads up to 2.00 GB "
        "from the disk (about 1 passes/s). Drafts help, since one pass checks several tokens; a "
        "smaller model is faster"
    )
    assert "passes/s" not in disk_warning(2_000_000_000, 1_000_000_000, None)


@pytest.mark.parametrize("free", [1, 1 << 50])
def test_only_a_model_without_room_is_warned_of(
    free: int,
    small_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("edgedec.runtime.opening.load.free_memory_bytes", lambda: free)
    with caplog.at_level(logging.WARNING), load(small_bundle) as engine:
        assert engine.encode("a")
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if "from the disk" in line]) == (free == 1)


@pytest.mark.parametrize("available", [5, None])
def test_memory_that_is_not_known_to_be_taken_is_free(
    available: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "memory_bytes", lambda: (7, available))
    assert memory.free_memory_bytes() == (available or 7)


def test_a_file_is_read_from_the_disk(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(100_000))
    rate = read_rate(file)
    assert rate is None or rate > 0
