"""Costs that are learned as passes run, and kept for the next runs on a machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgedec.runtime.decoding import cost_book
from edgedec.runtime.decoding.cost_book import TARGET, CostBook


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the target's costs are kept."""
    monkeypatch.setattr(cost_book.platformdirs, "user_cache_dir", lambda name: tmp_path / name)
    return tmp_path / "edgedec" / "costs" / "abc-target.json"


def test_requests_share_a_table(file: Path) -> None:
    book = CostBook("abc")
    assert book.of(TARGET) is book.of(TARGET)
    assert book.known(TARGET) is None, "no pass was seen"
    book.of(TARGET).observe(1, 10.0)
    assert book.known(TARGET) is book.of(TARGET)


def test_the_next_run_goes_on_with_what_was_learned(file: Path) -> None:
    book = CostBook("abc")
    book.keep(TARGET)
    assert not file.exists(), "nothing was learned"
    book.of(TARGET).observe(1, 10.0)
    book.of(TARGET).observe(4, 16.0)
    book.keep(TARGET)
    assert CostBook("abc").of(TARGET).row_ms == book.of(TARGET).row_ms
    assert CostBook("other").known(TARGET) is None


def test_a_table_is_written_when_it_rests_on_twice_the_passes(file: Path) -> None:
    book, n_written = CostBook("abc"), []
    for n in range(1, 100):
        book.of(TARGET).observe(1, 1000.0 - n)
        book.keep(TARGET)
        if not n_written or json.loads(file.read_text())["row_ms"]["1"] == book.of(TARGET).ms(1):
            n_written.append(n)
    assert n_written == [1, 2, 4, 8, 16, 32, 64]


def test_another_model_is_guessed_by_its_share_of_a_pass_of_the_target(file: Path) -> None:
    book = CostBook("abc", {"draft": 0.4})
    book.of(TARGET).observe(1, 10.0)
    draft = book.of("draft")
    assert draft.ms(1) == pytest.approx(4.0)
    assert draft.n_passes == 0
    draft.observe(1, 6.0)
    assert draft.ms(1) == pytest.approx(6.0)
    assert book.of(TARGET).ms(1) == pytest.approx(10.0)


def test_without_an_identity_nothing_is_kept(file: Path) -> None:
    book = CostBook()
    book.of(TARGET).observe(1, 10.0)
    book.keep(TARGET)
    assert list(file.parents[2].iterdir()) == []
