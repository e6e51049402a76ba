"""Which cases of parametrised tests stay in the fast tier."""

from __future__ import annotations

from itertools import product

import pytest

from .combinations import cover, mark_combinations

VALUES = (("scalar", "avx2", "avx512"), ("1", "2", "8", "16", "40"), ("float16", "int8"))


def test_every_value_is_run_and_few_cases_are() -> None:
    kept = cover(list(product(*VALUES)))
    assert [{case[i] for case in kept} for i in range(3)] == [set(values) for values in VALUES]
    assert len(kept) == 5


def test_what_no_other_case_runs_stays() -> None:
    cases = [("1", "a"), ("2", "a"), ("3", "b")]
    assert cover(cases) == set(cases)
    assert cover([]) == set()


def test_slow_cases_stand_for_no_others(request: pytest.FixtureRequest) -> None:
    items = [item for item in request.session.items if "_pair[" in item.nodeid]
    mine = [item for item in items if item.path == request.path]
    for item in mine:
        item.own_markers = [mark for mark in item.own_markers if mark.name != "combination"]
    mark_combinations(mine)
    left = {i.callspec.id for i in mine if not i.get_closest_marker("combination")}  # type: ignore[attr-defined]
    assert left == {"a-1", "b-2"}


@pytest.mark.parametrize("number", ["1", "2"])
@pytest.mark.parametrize("letter", ["a", "b", pytest.param("c", marks=pytest.mark.slow)])
def test_pair(letter: str, number: str) -> None:
    assert letter + number
