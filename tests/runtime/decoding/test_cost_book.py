"""Costs that are measured by the first runs on a machine, and kept for the next."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from edgedec.runtime.decoding import cost_book, cost_table
from edgedec.runtime.decoding.cost_book import CostBook
from edgedec.runtime.decoding.cost_table import ROWS, CostTable
from edgedec.runtime.sequences.passes import run_passes

from ..conftest import ToySession


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The user's folder of caches; no measurement is so disturbed that it is not kept."""
    monkeypatch.setattr(cost_table, "_STEADY", math.inf)
    monkeypatch.setattr(cost_book.platformdirs, "user_cache_dir", lambda name: tmp_path / name)
    return tmp_path


def rows_measured(book: CostBook, role: str) -> int:
    """Returns how many rows were computed until ``book`` knew what passes cost."""
    session = ToySession(997)
    run_passes(book.of(role, session))
    return session.n_rows


def test_until_it_is_settled_each_run_measures(cache: Path) -> None:
    file = cache / "edgedec" / "costs" / "abc-target.json"
    known = None
    while known is None or not known.is_settled:
        before = known
        assert rows_measured(CostBook("abc"), "target") >= sum(ROWS)
        known = CostTable.load(file, "abc")
        assert known != before
    assert rows_measured(CostBook("abc"), "target") == 0


def test_each_model_is_measured_once_by_a_book(cache: Path) -> None:
    book = CostBook("abc")
    assert rows_measured(book, "target")
    assert rows_measured(book, "target") == 0
    assert rows_measured(book, "draft")


def test_one_request_measures_and_others_know(cache: Path) -> None:
    book = CostBook("abc")
    passes = book.of("target", ToySession(997))
    next(passes)
    assert book.is_measuring("target")
    assert not book.is_measuring("draft")
    passes.close()  # the request was cancelled
    assert not book.is_measuring("target")
    run_passes(book.of("target", ToySession(997)))
    assert not book.is_measuring("target")


def test_without_an_identity_nothing_is_kept(cache: Path) -> None:
    assert rows_measured(CostBook(), "target")
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(("now_ms", "is_kept"), [(10.0, True), (8.0, True), (5.0, False)])
def test_costs_measured_while_others_computed_are_measured_anew(
    now_ms: float, is_kept: bool, cache: Path
) -> None:
    file = cache / "edgedec" / "costs" / "abc-target.json"
    CostTable({1: 10.0, 8: 30.0}, n_measurements=3).save(file, "abc")
    book = CostBook("abc")
    book.review("target")
    assert file.exists(), "nobody has used it yet"
    assert rows_measured(book, "target") == 0
    table = book.known("target")
    assert table is not None
    for _ in range(100):
        table.observe(1, now_ms)
    book.review("target")
    book.review("target")
    assert file.exists() == is_kept
    assert rows_measured(book, "target") == 0, "this run goes on with what it learned"
    assert (rows_measured(CostBook("abc"), "target") == 0) == is_kept
